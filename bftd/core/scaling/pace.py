"""The pace of a trainer, and the share of its time that it has nodes: the basis for its expected end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Time this long ago counts 1/e: long enough for a few suspensions, short enough to follow night and day.
FORGET_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """The share of its time that a trainer has nodes: `with_s` of `all_s` seconds; time long ago counts less.

    Both are as of `since_s`, from when on it `works` or not. The count begins with the first node that works: the wait
    for the first nodes says little of how long the trainer will have nodes.
    """

    with_s: float = 0.0
    all_s: float = 0.0
    works: bool = False
    since_s: float | None = None

    def seen(self, now_s: float, *, works: bool) -> Attendance:
        """Return the attendance from `now_s` on, when the trainer was seen to work or not."""
        if works == self.works and self.since_s is not None:
            return self
        if self.since_s is None:
            return replace(self, works=True, since_s=now_s) if works else self
        return replace(self.at(now_s), works=works)

    def at(self, now_s: float) -> Attendance:
        """Return the attendance as of `now_s`; a clock that went back changes nothing."""
        if self.since_s is None or now_s <= self.since_s:
            return self
        old = math.exp(-(now_s - self.since_s) / FORGET_S)
        passed_s = FORGET_S * (1.0 - old)
        with_s = self.with_s * old + (passed_s if self.works else 0.0)
        return replace(self, with_s=with_s, all_s=self.all_s * old + passed_s, since_s=now_s)

    def share(self, now_s: float) -> float:
        """Return the share of its time that it has nodes, 0 to 1; 1 before anything is known."""
        known = self.at(now_s)
        return min(1.0, known.with_s / known.all_s) if known.all_s > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The last known pace of a trainer: `steps_per_s` on `nodes`, both 0 before any is known.

    The rate of a size is kept after the size is left: between two sizes nothing is measured for seconds. At present the
    trainer is at `step`, on `present` nodes.
    """

    step: int = 0
    steps_per_s: float = 0.0
    nodes: int = 0
    present: int = 0

    def with_report(self, step: int, steps_per_s: float, nodes: int) -> Pace:
        """Return the pace once a driver has reported its step and, if that is not 0, its rate."""
        if steps_per_s > 0.0 and nodes > 0:
            return Pace(step, steps_per_s, nodes, nodes)
        return replace(self, step=step, present=nodes)
