"""The rows of a recording, poll by poll. Pure: times are passed in with the polls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

# A poll's answer is trusted until the next poll, but for at most two intervals: a poll may be late, not lost.
_BELIEVED_POLLS = 2.0

# time in s, node, whether it joins
Row = tuple[float, str, bool]


class PollRecorder:
    """A converter of the idle sets seen by polls into the rows of a trace.

    If a poll fails, or none comes for two intervals, the state is unknown: all nodes leave, at the time of the failed
    poll or one interval after the last good one, and the gap is counted.
    """

    def __init__(
        self,
        poll_interval_s: float,
        nodes: Iterable[str] = (),
        idle: Iterable[str] = (),
        last_s: float | None = None,
        notes: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.poll_interval_s = poll_interval_s
        self.nodes: dict[str, None] = dict.fromkeys(nodes)
        self.idle = frozenset(idle)
        self.notes: Counter[str] = Counter(dict(notes))
        self.last_s = last_s
        # the end of the counted part of a gap that is still open
        self._gap_s: float | None = None
        self._gaps_total_s = float(self.notes["gap_s"])

    def lost_touch(self, time_s: float) -> bool:
        """Whether the last good poll is too old to be trusted until now."""
        late_s = _BELIEVED_POLLS * self.poll_interval_s
        return self._gap_s is not None or (self.last_s is not None and time_s - self.last_s > late_s)

    def see(self, time_s: float, idle: Collection[str], nodes: Iterable[str]) -> list[Row]:
        """Take a good poll; `nodes` are all nodes that it watched."""
        rows = self.miss(time_s) if self.lost_touch(time_s) else []
        self._gap_s = None
        self.nodes.update(dict.fromkeys(nodes))
        rows += self._become(time_s, frozenset(idle))
        self.last_s = time_s
        return rows

    def miss(self, time_s: float) -> list[Row]:
        """Take a failed poll, or the end of a time without polls."""
        if self.last_s is None:
            return []
        rows: list[Row] = []
        if self._gap_s is None:
            late = self.lost_touch(time_s)
            self._gap_s = self.last_s + self.poll_interval_s if late else time_s
            self.notes["gaps"] += 1
            rows = self._become(self._gap_s, frozenset())
        self._gaps_total_s += time_s - self._gap_s
        self.notes["gap_s"] = round(self._gaps_total_s)
        self._gap_s = time_s
        return rows

    def _become(self, time_s: float, idle: frozenset[str]) -> list[Row]:
        before, self.idle = self.idle, idle
        changed = before ^ idle
        return [(time_s, node, node in idle) for node in self.nodes if node in changed]
