"""The expected end of a trainer: the steps that are left, at its pace, for the share of time in which it trains.

A trainer that has nodes for half of its time takes twice as long. That share is one of the last hours: how a cluster is
used changes with the time of day, and the share of days ago says nothing of tonight.
"""

from __future__ import annotations

import math

from bftd.core.model.domain import Trainer
from bftd.core.scaling import learning
from milp import interpolate

# A longer time counts as not known: at a pace of nearly nothing, any time is wrong.
MOST_S = 10 * 365 * 86_400.0


def expected_end_s(trainer: Trainer, now_s: float) -> float | None:
    """Return when a trainer is expected to end (unix seconds), never before `now_s`.

    At a size without measurements the curve gives its speed relative to a measured size. Return None if the steps of
    the whole training or the pace are not known, if more steps were done than the training has, and for a trainer that
    has ended.
    """
    if trainer.total_steps is None or not trainer.active or not math.isfinite(now_s):
        return None
    pace, left = trainer.pace, trainer.total_steps - max(trainer.pace.step, 0)
    if left < 0:  # it goes on beyond the steps that it reported: it may do so for long
        return None
    if left == 0:
        return now_s
    steps_per_s = pace.steps_per_s * _faster(trainer)
    share = trainer.attendance.share(now_s)
    if not (steps_per_s > 0.0 and share > 0.0):
        return None
    takes_s = left / steps_per_s / share
    return now_s + takes_s if takes_s <= MOST_S else None


def _faster(trainer: Trainer) -> float:
    """Return the speed on the present nodes relative to the nodes where the pace was measured."""
    pace = trainer.pace
    if pace.present in (0, pace.nodes) or not pace.nodes:
        return 1.0
    curve = learning.curve(trainer.knowledge, trainer.sizes.high)
    here, there = (interpolate(curve, min(size, trainer.sizes.high)) for size in (pace.present, pace.nodes))
    return here / there if here > 0.0 and there > 0.0 else 1.0
