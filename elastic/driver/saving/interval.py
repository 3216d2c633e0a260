"""The interval of a trainer's saves, if the script leaves it to bftd: from the cost and the benefit of a save.

Pure. A save costs the time that the slowest worker stands still for it, and a loss of nodes costs the training since
the last save. Young and Daly's interval, sqrt(2 x cost x time between losses), minimizes the sum of both.
"""

from __future__ import annotations

import math
import statistics

from elastic.base.timing import UPLOAD_EVERY_S
from elastic.driver.progress.job_output import span
from elastic.options.elastic_option import SAVE_SHARE_MOST

_KEPT = 5
"""The number of saves whose median counts: the first has to allocate its memory, and another met a busy file server."""

_FIRST_LOSS_S = 3600.0
"""A trainer starts as if it had lost nodes once in this time; its own early losses count for more."""

_CALM_SHARE = 0.02
"""The share of time for saves if the user sets none and no step was lost; a trainer that loses some saves more."""

_TOLD_AGAIN = 1.5
"""An interval is reported again once it is this many times as long or as short."""


def interval_s(cost_s: float, loss_every_s: float, share: float, least_s: float) -> float:
    """Returns the seconds between saves, if a save stalls training for `cost_s` and losses are `loss_every_s` apart.

    Never so short that saves take more than `share` of the time, nor shorter than `least_s`. Source: Young, CACM 17
    (1974); Daly, FGCS 22 (2006).
    """
    return max(least_s, cost_s / share, math.sqrt(2.0 * cost_s * loss_every_s))


class Saves:
    """The schedule of a trainer's saves; times are on a monotonic clock."""

    def __init__(self, share: float | None) -> None:
        """`share` of the time may go to saves; None: it depends on whether steps are lost."""
        self._share = share
        self._costs_s: list[float] = []
        self._measuring = False
        self._trained_s = 0.0
        self._losses = 0
        self._upload_s = 0.0
        self._group = 0
        self._saved_s = self._now_s = -math.inf
        self._told_s = 0.0
        self.due = False
        """Whether it is time to ask the workers, as of the last `look`."""

    def look(self, now_s: float, training: bool, group: int, losses: int, upload_s: float) -> None:
        """Notes whether workers train, in which group, how many times steps were lost, and how long an upload takes."""
        if group != self._group:  # it began from a checkpoint, so nothing more can be lost yet
            self._group, self._saved_s, self._measuring = group, now_s, False
        elif training and group:
            self._trained_s += now_s - self._now_s
        self._now_s, self._losses, self._upload_s = now_s, losses, upload_s
        self.due = training and group > 0 and now_s - self._saved_s >= self.interval_s

    def worth(self, save_s: float) -> bool:
        """Whether to save now, given the workers' cost of the last save (0: none was measured)."""
        if self._measuring and save_s > 0.0:
            self._costs_s = [*self._costs_s, save_s][-_KEPT:]
            self._measuring = False
        return self._now_s - self._saved_s >= self.interval_s

    def asked(self, now_s: float) -> None:
        """Notes that the workers save at the end of a near step."""
        self._saved_s, self._measuring = now_s, True

    @property
    def interval_s(self) -> float:
        """The seconds from one save to the next, by present knowledge."""
        usual = SAVE_SHARE_MOST if self._losses else _CALM_SHARE
        return self._interval_s(self._share or usual)

    def _interval_s(self, share: float) -> float:
        # A save before the previous one has arrived would be copied for nothing.
        return interval_s(self._cost_s, self._loss_every_s, share, max(UPLOAD_EVERY_S, self._upload_s))

    def line(self) -> str | None:
        """Returns a line about the interval, if it was measured and has changed since the last line; else None."""
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
            f"a checkpoint is saved about every {span(every_s)}: a save stalls training for {cost} s "
            f"({self._cost_s / every_s:.1%} of the time), and {lost}{more}"
        )

    @property
    def _cost_s(self) -> float:
        return statistics.median_low(self._costs_s) if self._costs_s else 0.0

    @property
    def _loss_every_s(self) -> float:
        return (self._trained_s + _FIRST_LOSS_S) / (self._losses + 1)
