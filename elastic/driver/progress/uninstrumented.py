"""A script that neither reports its steps nor saves: its resize costs cannot be measured, so they are estimated.

Pure: starts and ends of its groups in, reports for the daemon out.
"""

from __future__ import annotations

from bftd.protocol.reports import ResizeReport
from elastic.base.timing import SILENT_COST_S

SILENT = (
    "no steps seen: each resize restarts your script, from its own last checkpoint if it looks for one, so bftd seldom "
    "resizes it; add progress= to --elastic, or elastic.step() and elastic.save() (or Horovod's elastic state) to the "
    "script"
)

UNSAVED = (
    "nothing saved: this resize restarts your script, from its own last checkpoint if it looks for one; to lose "
    "nothing, call elastic.save() whenever elastic.step() returns True"
)

NOT_LOADED = (
    "no elastic.load() seen: each resize begins your script anew, and what it saves below the step that is kept is "
    "dropped; call elastic.load() when it starts, on every rank"
)

_PAUSE_MOST_S = 60.0
"""The longest gap of a resize, from one group to the next; after a longer one the trainer was suspended."""


class Silence:
    """One trainer's groups, while its script reports nothing; times are on a monotonic clock."""

    def __init__(self) -> None:
        self._group: set[str] = set()
        self._began_s = 0.0
        self._ended_s = 0.0
        self._before = 0
        self._cost_s = 0.0

    def began(self, lease: str, at_s: float) -> bool:
        """Notes that workers begin on a pilot; returns whether they are the first of their group."""
        first = not self._group
        if first:
            self._began_s = at_s
        self._group.add(lease)
        return first

    def outlived(self, lease: str) -> bool:
        """Whether a new group has begun without this pilot since the last one ended: its output is the old group's."""
        return bool(self._group) and lease not in self._group

    def ended(self, at_s: float) -> bool:
        """Notes that the group is stopped for another one; returns whether there was one."""
        if not self._group:
            return False
        self._before, self._ended_s = len(self._group), at_s
        # Only the script knows of checkpoints, so all of the group's work may have to be repeated.
        self._cost_s = min(max(0.0, at_s - self._began_s), SILENT_COST_S)
        self._group = set()
        return True

    def resize(self, now_s: float) -> ResizeReport | None:
        """Reports the cost of the last change of the group, once all of the new one have begun; None if there was none.

        `now_s`: the time of the report, in unix seconds.
        """
        before, now = self._before, len(self._group)
        self._before = 0
        if not before or not now or before == now or self._began_s - self._ended_s > _PAUSE_MOST_S:
            return None
        return ResizeReport(now_s, before, now, "up" if now > before else "down", self._cost_s)
