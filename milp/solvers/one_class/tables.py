"""Tables of the worth of every count to every trainer: equations (11)-(16) for one class of nodes.

The *options* of a trainer are 0, nodes_min, nodes_max, its current count and the points of its curve. A count between
two of them is worth no more than the straight line between their values: the outcome is linear there, and the rescale
cost is the same everywhere but at the current count, where it is 0. So the options alone decide the Lagrangian bound,
and even for a trainer with a nodes_max of thousands few other counts are ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.problem import Problem, TrainerSpec
from milp.solvers.arrays import Bools, Floats, Ints, worst_that_matters
from milp.solvers.one_class.utility_arrays import Worth
from milp.utility import TIE_BREAK, tie_break


@dataclass(frozen=True)
class Tables:
    """A problem of J trainers on `capacity` interchangeable nodes; rows are trainers, in their order.

    `options` (J, K) are allowed counts in ascending order, 0 first, some repeated as padding; `values` (J, K) are their
    worths. If `filled` (J,), all counts between two options other than 0 are allowed too; `lowest` and `top` (J,) are
    then the smallest and the largest count other than 0, both 0 if none fits the pool. `size` is the sum over the
    trainers of their largest absolute value: rounding errors are relative to it. `tie_breaks` is the most that the
    tie-breaks of a whole plan can add up to.
    """

    capacity: int
    options: Ints
    values: Floats
    filled: Bools
    lowest: Ints
    top: Ints
    size: float
    tie_breaks: float
    value: Worth

    def total(self, counts: Ints) -> float:
        """Return the worth of a plan with these counts (J,)."""
        return float(self.value(np.arange(len(counts)), counts).sum())

    def members(self) -> list[list[int]]:
        """Return the rows grouped by equal tables: any counts are worth the same to the trainers of a group."""
        packed = np.concatenate([self.options, self.values.view(np.int64), self.filled[:, None]], axis=1)
        alike: dict[bytes, list[int]] = {}
        for row, table in enumerate(packed):
            alike.setdefault(table.tobytes(), []).append(row)
        return list(alike.values())


def tabulate(problem: Problem) -> Tables:
    """Build the tables of a problem that has trainers; node classes are ignored."""
    trainers = problem.trainers
    capacity = len(problem.nodes)
    top = np.minimum([trainer.nodes_max for trainer in trainers], capacity)
    lowest = np.array([trainer.nodes_min for trainer in trainers])
    never = lowest > top
    lowest[never] = top[never] = 0
    worth = Worth(problem)
    options = _options(trainers, worth, lowest, top)
    rows = np.broadcast_to(np.arange(len(trainers))[:, None], options.shape)
    values = worth(rows, options)
    change = options - worth.current[:, None]
    # The largest allowed part of the nodes held now: always allowed, so the optimum is worth no less.
    kept = (change <= 0).sum(axis=1) - 1
    floor = worst_that_matters(values.max(axis=1), float(values[rows[:, 0], kept].sum()), worth.most_earned())
    if (values < floor[:, None]).any():
        worth.floor, values = floor, np.maximum(values, floor[:, None])
    size = float(np.abs(values).max(axis=1).sum()) or 1.0
    worth.tie_break = tie_break(size, capacity)
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


def _options(trainers: tuple[TrainerSpec, ...], worth: Worth, lowest: Ints, top: Ints) -> Ints:
    """Return the counts (J, K) that span all others; for trainers with sizes, just those sizes."""
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
