"""What every count is worth to every trainer, as arrays: equations (11)-(16) for one class of nodes.

The *options* of a trainer are 0, nodes_min, nodes_max, its current count and the points of its curve. Between two of
them a count is worth no more than the straight line between their values says: the outcome is linear there, and the
rescale cost is the same all over but for the current count, where there is none. So the options alone decide the
Lagrangian bound, and of a trainer with a nodes_max of thousands few other counts are ever looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from milp.curves import Curve
from milp.problem import Problem, TrainerSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# What all nodes together cost for changing hands, as a part of the problem's total value: enough to decide between
# plans of equal value, too little to make a better plan lose.
TIE_BREAK = 1e-10


class _Curves:
    """Curves laid end to end on one axis, so that one `np.interp` evaluates any mixture of them up to `widest` nodes.

    The points are those of curve `row`, `column` is their place in it; `peaks` are the curves' highest values.
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
    """Remembered: from event to event it is mostly the same trainers that are planned for."""
    return _Curves(curves, widest)


class _Worth:
    """Equation (16) for arrays of (row, count), less `tie_break` for every node that changes hands.

    What is worse than `floor` (J,), if that is given, is in no optimal plan and counts as the floor: see
    `worst_that_matters`.
    """

    def __init__(self, problem: Problem) -> None:
        trainers = problem.trainers
        self.current = np.array([len(trainer.current) for trainer in trainers])
        curves = tuple(trainer.curve_on(problem.classes) for trainer in trainers)
        # The next power of 2, so that another size of the pool mostly finds the same layout.
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
        """What all trainers would earn without limits and costs."""
        return float((self._horizon * self.curves.peaks).sum())


@dataclass(frozen=True)
class Tables:
    """A problem of J trainers on `capacity` interchangeable nodes; rows are trainers, in their order.

    `options` (J, K) are allowed counts in ascending order, 0 first, some repeated as padding; `values` (J, K) is
    what they are worth. Where `filled` (J,) all counts between two options other than 0 are allowed too; `lowest`
    and `top` (J,) are then the smallest and the largest count other than 0, both 0 where none fits the pool.
    `size` is the sum over the trainers of their largest absolute value: rounding errors are relative to it.
    `tie_breaks` is the most that the tie-breaks of a whole plan can come to.
    """

    capacity: int
    options: Ints
    values: Floats
    filled: Bools
    lowest: Ints
    top: Ints
    size: float
    tie_breaks: float
    value: _Worth

    def total(self, counts: Ints) -> float:
        """What a plan with these counts (J,) is worth."""
        return float(self.value(np.arange(len(counts)), counts).sum())

    def members(self) -> list[list[int]]:
        """The rows, those of equal tables together: any counts are worth the same to them."""
        packed = np.concatenate([self.options, self.values.view(np.int64), self.filled[:, None]], axis=1)
        alike: dict[bytes, list[int]] = {}
        for row, table in enumerate(packed):
            alike.setdefault(table.tobytes(), []).append(row)
        return list(alike.values())


def worst_that_matters(best: Floats, least: float, most_earned: float) -> Floats:
    """The worth (J,) below which no count of a trainer is in an optimal plan, when it can have `best` (J,) at most.

    A plan worth `least` is known, so no trainer of a better one loses more against its best than all could lose
    together. A prohibitive cost is cut to twice that: left as it is, it would set the scale of rounding errors and
    tie-breaks, and drown what plans really differ by. `most_earned` keeps the cut well above rounding where nobody
    loses anything; where nobody earns anything either, costs are all there is.
    """
    if most_earned <= 0:
        return np.full(len(best), -np.inf)
    floor: Floats = best - 2 * (best.sum() - least + most_earned)
    return floor


def tabulate(problem: Problem) -> Tables:
    """Build the tables of a problem that has trainers; node classes are not looked at."""
    trainers = problem.trainers
    capacity = len(problem.nodes)
    top = np.minimum([trainer.nodes_max for trainer in trainers], capacity)
    lowest = np.array([trainer.nodes_min for trainer in trainers])
    never = lowest > top
    lowest[never] = top[never] = 0
    worth = _Worth(problem)
    options = _options(trainers, worth, lowest, top)
    rows = np.broadcast_to(np.arange(len(trainers))[:, None], options.shape)
    values = worth(rows, options)
    change = options - worth.current[:, None]
    # The most of what is held now: a plan that is always allowed, so the optimum is worth no less.
    kept = (change <= 0).sum(axis=1) - 1
    floor = worst_that_matters(values.max(axis=1), float(values[rows[:, 0], kept].sum()), worth.most_earned())
    if (values < floor[:, None]).any():
        worth.floor, values = floor, np.maximum(values, floor[:, None])
    size = float(np.abs(values).max(axis=1).sum()) or 1.0
    # A plan gives up at most `capacity` nodes and takes as many.
    worth.tie_break = TIE_BREAK * size / max(2 * capacity, 1)
    values -= worth.tie_break * np.abs(change)
    return Tables(
        capacity=capacity,
        options=options,
        values=values,
        filled=np.array([trainer.sizes is None for trainer in trainers]),
        lowest=lowest,
        top=top,
        size=size,
        tie_breaks=TIE_BREAK * size,
        value=worth,
    )


def _options(trainers: tuple[TrainerSpec, ...], worth: _Worth, lowest: Ints, top: Ints) -> Ints:
    """The counts (J, K) that span all others, or for trainers with sizes just those."""
    curves, current = worth.curves, worth.current
    ends = np.stack([current, top], axis=1)
    sized = [(row, trainer.sizes) for row, trainer in enumerate(trainers) if trainer.sizes is not None]
    width = max([int(curves.column.max()) + 1, *(len(sizes) for _, sizes in sized)])
    options = np.zeros((len(trainers), 1 + ends.shape[1] + width), np.int64)
    options[:, 1:-width] = ends
    options[curves.row, curves.column - width] = curves.points
    # The curve's point at 0 becomes nodes_min.
    np.clip(options[:, 1:], lowest[:, None], top[:, None], out=options[:, 1:])
    for row, sizes in sized:
        fitting = [size for size in sizes if lowest[row] <= size <= top[row]]
        options[row] = 0
        options[row, : len(fitting)] = fitting
    options.sort(axis=1)
    return options
