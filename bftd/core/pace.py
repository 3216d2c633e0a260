"""At what pace a trainer goes on, and for how much of its time it has nodes: what its end is reckoned from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# What was so long ago counts 1/e: long enough for a few suspensions, short enough to follow night and day.
FORGET_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """For how much of its time a trainer has nodes: `with_s` of `all_s` seconds, of which those long ago count less.

    Both are as of `since_s`, from when on it `works` or not. It begins with the first node that works: how long a
    trainer waits for its first nodes says little of how long it will have them.
    """

    with_s: float = 0.0
    all_s: float = 0.0
    works: bool = False
    since_s: float | None = None

    def seen(self, now_s: float, *, works: bool) -> Attendance:
        """The same from `now_s` on, when the trainer was seen to work or not."""
        if works == self.works and self.since_s is not None:
            return self
        if self.since_s is None:
            return replace(self, works=True, since_s=now_s) if works else self
        return replace(self.at(now_s), works=works)

    def at(self, now_s: float) -> Attendance:
        """The same as of `now_s`; a clock that went back changes nothing."""
        if self.since_s is None or now_s <= self.since_s:
            return self
        old = math.exp(-(now_s - self.since_s) / FORGET_S)
        passed_s = FORGET_S * (1.0 - old)
        with_s = self.with_s * old + (passed_s if self.works else 0.0)
        return replace(self, with_s=with_s, all_s=self.all_s * old + passed_s, since_s=now_s)

    def share(self, now_s: float) -> float:
        """The share of its time that it has nodes, 0 to 1; 1 before anything is known."""
        known = self.at(now_s)
        return min(1.0, known.with_s / known.all_s) if known.all_s > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a trainer was when that was last known: `steps_per_s` on `nodes`, both 0 before.

    The rate of a size outlives the size: between two of them nothing is measured for seconds. At present the trainer is
    at `step`, on `present` nodes.
    """

    step: int = 0
    steps_per_s: float = 0.0
    nodes: int = 0
    present: int = 0

    def told(self, step: int, steps_per_s: float, nodes: int) -> Pace:
        """The same once a driver has told of its step and, where that is not 0, of its pace."""
        if steps_per_s > 0.0 and nodes > 0:
            return Pace(step, steps_per_s, nodes, nodes)
        return replace(self, step=step, present=nodes)
