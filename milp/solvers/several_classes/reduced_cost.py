"""Reduced-cost fixing: the choices of class and count that can still be part of a plan worth more than a floor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.solvers.arrays import Bools, Floats, Ints
from milp.solvers.several_classes.tables import ClassTables


@dataclass(frozen=True)
class Choices:
    """Choices (S,) of all trainers, sorted by row, class and count; `losses` (M, S) against the best at each price.

    `best` (M, J) is the score of the trainers' best choices at each price, after paying for the nodes.
    """

    row: Ints
    kind: Ints
    count: Ints
    worth: Floats
    losses: Floats
    best: Floats

    def of(self, row: int) -> slice:
        """Return the slice of a trainer's choices."""
        return slice(*np.searchsorted(self.row, [row, row + 1]).tolist())

    def only(self, which: Bools) -> Choices:
        """Return the selected choices."""
        return Choices(
            self.row[which], self.kind[which], self.count[which], self.worth[which], self.losses[:, which], self.best
        )

    @property
    def complete(self) -> bool:
        """Whether every trainer has a choice left."""
        return bool(len(np.unique(self.row)) == self.best.shape[1])


def within(tables: ClassTables, prices: Floats, floor: float) -> Choices:
    """Return all choices with which the bound is above `floor` at each of the `prices` (M, K)."""
    lines = tables.lines
    best = np.stack([(tables.worths - price[tables.kinds] * tables.counts).max(axis=1) for price in prices])
    slack = best.sum(axis=1) + prices @ tables.capacity - floor
    line, count = _counts_near(tables, prices[0], best[0], slack[0])
    worth = lines.worth_at(line, count)
    row, kind = lines.row[line], lines.kind[line]
    losses = best[:, row] - worth + prices[:, kind] * count
    keep = np.flatnonzero((losses <= slack[:, None]).all(axis=0))
    # A count at which two lines meet is on both.
    key = (row[keep] * len(tables.capacity) + kind[keep]) * (int(tables.capacity.max()) + 1) + count[keep]
    keep = keep[np.unique(key, return_index=True)[1]]
    return Choices(row[keep], kind[keep], count[keep], worth[keep], losses[:, keep], best)


def _counts_near(tables: ClassTables, price: Floats, best: Floats, slack: float) -> tuple[Ints, Ints]:
    """Return (line, count) of all choices that lose no more than `slack` at `price`, and perhaps a few others."""
    lines = tables.lines
    at_low = best[lines.row] - lines.worth_low + price[lines.kind] * lines.low
    at_high = best[lines.row] - lines.worth_high + price[lines.kind] * lines.high
    line = np.flatnonzero(np.minimum(at_low, at_high) <= slack)
    at_low, at_high, low, high = at_low[line], at_high[line], lines.low[line], lines.high[line]
    # The part of the line within the slack, seen from the end that is within; all of it if both are.
    part = np.ones(len(line))
    np.divide(slack - np.minimum(at_low, at_high), np.abs(at_high - at_low), out=part, where=at_low != at_high)
    reach = np.ceil(np.minimum(part, 1.0) * (high - low)).astype(np.int64)
    start, lengths = np.where(at_low > at_high, high - reach, low), reach + 1
    steps = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(line, lengths), np.repeat(start, lengths) + steps
