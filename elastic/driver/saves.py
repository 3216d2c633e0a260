"""How often a trainer's state is saved, where the script leaves that to bftd: by what it costs and what it is good for.

Pure. A save costs what the slowest worker stood still for it, and a loss of nodes costs what was trained since the last
save. Young and Daly's interval, sqrt(2 x cost x time between losses), makes the sum of both least.
"""

from __future__ import annotations

import math
import statistics

from elastic.driver.changes import span
from elastic.spec import SAVE_SHARE_MOST
from elastic.timing import SHIP_EVERY_S

_KEPT = 5
"""Saves of which the middle one counts: the first has to find its memory, and another met a busy file server."""

_FIRST_LOSS_S = 3600.0
"""A trainer begins as if it had lost nodes once in so long; what it does lose soon counts for more."""

_CALM_SHARE = 0.02
"""Of the time of a trainer that has lost no step, where the user leaves that to bftd; who loses some saves more."""

_TOLD_AGAIN = 1.5
"""An interval is told of again once it is so many times as long or as short."""


def interval_s(cost_s: float, loss_every_s: float, share: float, least_s: float) -> float:
    """Seconds from one save to the next, where a save stalls training for `cost_s` and nodes are lost every so often.

    Never so short that saves take more than `share` of the time, nor shorter than `least_s`. Source: Young, CACM 17
    (1974); Daly, FGCS 22 (2006).
    """
    return max(least_s, cost_s / share, math.sqrt(2.0 * cost_s * loss_every_s))


class Saves:
    """When the next save is due; times are of a clock that nobody sets."""

    def __init__(self, share: float | None) -> None:
        """`share` of the time may go to saves; None: it follows whether steps are lost."""
        self._share = share
        self._costs_s: list[float] = []
        self._measuring = False
        self._trained_s = 0.0
        self._losses = 0
        self._travel_s = 0.0
        self._group = 0
        self._saved_s = self._now_s = -math.inf
        self._told_s = 0.0
        self.due = False
        """Whether it is time to ask the workers, as far as was known at the last `look`."""

    def look(self, now_s: float, training: bool, group: int, losses: int, travel_s: float) -> None:
        """Notes whether workers train, and which group of them, how often steps were lost, and how a save travels."""
        if group != self._group:  # it has begun with what was saved, so nothing more can be lost yet
            self._group, self._saved_s, self._measuring = group, now_s, False
        elif training and group:
            self._trained_s += now_s - self._now_s
        self._now_s, self._losses, self._travel_s = now_s, losses, travel_s
        self.due = training and group > 0 and now_s - self._saved_s >= self.interval_s

    def worth(self, save_s: float) -> bool:
        """Whether to save now, once the workers say what the last save has cost them (0: none is measured)."""
        if self._measuring and save_s > 0.0:
            self._costs_s = [*self._costs_s, save_s][-_KEPT:]
            self._measuring = False
        return self._now_s - self._saved_s >= self.interval_s

    def asked(self, now_s: float) -> None:
        """The workers save at the end of a step that is near."""
        self._saved_s, self._measuring = now_s, True

    @property
    def interval_s(self) -> float:
        """Seconds from one save to the next, by what is known."""
        usual = SAVE_SHARE_MOST if self._losses else _CALM_SHARE
        return self._interval_s(self._share or usual)

    def _interval_s(self, share: float) -> float:
        # One that comes sooner than the one before has arrived would be copied in vain.
        return interval_s(self._cost_s, self._loss_every_s, share, max(SHIP_EVERY_S, self._travel_s))

    def line(self) -> str | None:
        """What is to be told of the interval, if it was measured and is another than was told last."""
        every_s = self.interval_s
        if not self._costs_s or self._told_s / _TOLD_AGAIN < every_s < self._told_s * _TOLD_AGAIN:
            return None
        self._told_s = every_s
        cost = f"{self._cost_s:.2f}" if self._cost_s < 10.0 else f"{self._cost_s:.0f}"
        lost = (
            f"steps were lost {self._losses} times in {span(self._trained_s)}" if self._losses else "no step was lost"
        )
        fewer = self._losses > 0 and self._interval_s(SAVE_SHARE_MOST) * _TOLD_AGAIN < every_s
        more = f"; with save_share={SAVE_SHARE_MOST:g} it would be fewer" if fewer else ""
        return (
            f"the state is saved about every {span(every_s)}: a save stalls training for {cost} s "
            f"({self._cost_s / every_s:.1%} of the time), and {lost}{more}"
        )

    @property
    def _cost_s(self) -> float:
        return statistics.median_low(self._costs_s) if self._costs_s else 0.0

    @property
    def _loss_every_s(self) -> float:
        return (self._trained_s + _FIRST_LOSS_S) / (self._losses + 1)
