"""The worth of counts to trainers, as arrays: equations (11)-(16) for one class of nodes, in a fast form.

A table has thousands of entries, for which plain Python would take longer than solving does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from milp.curves import Curve
from milp.problem import Problem
from milp.solvers.arrays import Floats, Ints


class _Curves:
    """Curves laid end to end on one axis, so that one `np.interp` evaluates any mix of them up to `widest` nodes.

    The points are those of curve `row`, with `column` their place in it; `peaks` are the curves' highest values.
    """

    def __init__(self, curves: Sequence[Curve], widest: int) -> None:
        lengths = np.array([len(curve.nodes) for curve in curves])
        total, starts = int(lengths.sum()), np.cumsum(lengths) - lengths
        values = np.fromiter(chain.from_iterable(curve.values for curve in curves), np.float64, total)
        self.points = np.fromiter(chain.from_iterable(curve.nodes for curve in curves), np.int64, total)
        self.row = np.repeat(np.arange(len(curves)), lengths)
        self.column = np.arange(total) - np.repeat(starts, lengths)
        self.peaks: Floats = np.maximum.reduceat(values, starts)
        # Beyond the last point the curve is constant: one more point closes its stretch of the axis.
        last = max(widest, int(self.points.max())) + 1
        self._stretch = last + 1
        place = np.arange(total) + self.row
        closing = starts + lengths + np.arange(len(curves))
        self._axis, self._values = np.empty(total + len(curves)), np.empty(total + len(curves))
        self._axis[place] = self.row * self._stretch + self.points
        self._axis[closing] = np.arange(len(curves)) * self._stretch + last
        self._values[place] = values
        self._values[closing] = values[starts + lengths - 1]

    def __call__(self, rows: Ints, counts: Ints) -> Floats:
        heights: Floats = np.interp(rows * self._stretch + counts, self._axis, self._values)
        return heights


@lru_cache(maxsize=8)
def _laid_out(curves: tuple[Curve, ...], widest: int) -> _Curves:
    """Lay out the curves; cached, because successive events mostly plan for the same trainers."""
    return _Curves(curves, widest)


class Worth:
    """Equation (16) for arrays of (row, count), as `milp.utility.worth` is for one; a test compares the two.

    Every node that changes hands costs `tie_break`. A worth below `floor` (J,), if that is given, is in no optimal plan
    and counts as the floor: see `worst_that_matters`.
    """

    def __init__(self, problem: Problem) -> None:
        trainers = problem.trainers
        self.current = np.array([len(trainer.current) for trainer in trainers])
        curves = tuple(trainer.curve_on(problem.classes) for trainer in trainers)
        # The next power of 2, so that another size of the pool mostly has the same layout.
        self.curves = _laid_out(curves, 1 << len(problem.nodes).bit_length())
        self.tie_break = 0.0
        self.floor: Floats | None = None
        earns_now = np.array([problem.earns_now[trainer.name] for trainer in trainers])
        # By the sign of the change: fewer nodes, the same, more.
        stalls_s = [(trainer.down_cost_s, 0.0, trainer.up_cost_s) for trainer in trainers]
        self._costs: Floats = earns_now[:, None] * np.array(stalls_s)
        self._horizon = problem.t_fwd_s * np.array([trainer.weight for trainer in trainers])

    def __call__(self, rows: Ints, counts: Ints) -> Floats:
        change = counts - self.current[rows]
        worth: Floats = self._horizon[rows] * self.curves(rows, counts)
        worth -= self._costs[rows, np.sign(change) + 1]
        if self.floor is not None:
            worth = np.maximum(worth, self.floor[rows])
        if self.tie_break:
            worth -= self.tie_break * np.abs(change)
        return worth

    def most_earned(self) -> float:
        """Return what all trainers would earn without limits and costs."""
        return float((self._horizon * self.curves.peaks).sum())
