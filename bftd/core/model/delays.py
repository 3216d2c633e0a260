"""The delays that pilots caused regular jobs, and the part that counts against the site's budget of an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

HOUR_S = 3600.0
# Slurm's times are whole seconds: a start shown a second late may not have been late.
UNCOUNTED_S = 1.0
# Counted delays are kept by the minute: sixty sums instead of one per start.
_BUCKET_S = 60.0


@dataclass(frozen=True, slots=True)
class TouchedStart:
    """A regular job that started where pilots were, at `start_s` by Slurm's record.

    At `since_s` Slurm could have started it without the pilots, and by `until_s` it would have started once all had
    left: waiting after that is not the pilots' fault. None stands for a time that cannot be known.
    """

    job: str
    nodes: tuple[str, ...]
    since_s: float | None = None
    start_s: float | None = None
    until_s: float = inf

    @property
    def delay_s(self) -> float | None:
        """The upper bound of the delay that pilots caused; None if unknown."""
        if self.since_s is None or self.start_s is None:
            return None
        return max(0.0, min(self.start_s, self.until_s) - self.since_s)


@dataclass(frozen=True, slots=True)
class Delays:
    """Starts that pilots touched since the ledger began, and their delays. None of the counters ever decreases.

    `unknown` counts the starts whose delay is not known. `recent` has the delays that count against the budget, by the
    minute of the start.
    """

    starts: int = 0
    unknown: int = 0
    total_s: float = 0.0
    recent: tuple[tuple[float, float], ...] = ()

    def noted(self, starts: Sequence[TouchedStart], now_s: float) -> Delays:
        """Return the delays with the starts that a snapshot of `now_s` shows."""
        minute_s = now_s // _BUCKET_S * _BUCKET_S
        recent = {at_s: counted_s for at_s, counted_s in self.recent if -_BUCKET_S < now_s - at_s < HOUR_S + _BUCKET_S}
        known = [start.delay_s for start in starts if start.delay_s is not None]
        if counted_s := sum(max(0.0, delay_s - UNCOUNTED_S) for delay_s in known):
            recent[minute_s] = recent.get(minute_s, 0.0) + counted_s
        return Delays(
            self.starts + len(starts),
            self.unknown + len(starts) - len(known),
            self.total_s + sum(known),
            tuple(recent.items()),
        )

    def counted_s(self, now_s: float) -> float:
        """Return the seconds of delay that count for the last hour, including the whole minute in which it began."""
        return sum(counted_s for at_s, counted_s in self.recent if -_BUCKET_S < now_s - at_s < HOUR_S + _BUCKET_S)

    def moved(self, by_s: float) -> Delays:
        """Return the delays with their times moved: the clock was set."""
        return replace(self, recent=tuple((at_s + by_s, counted_s) for at_s, counted_s in self.recent))
