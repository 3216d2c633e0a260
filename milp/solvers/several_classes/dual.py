"""The Lagrangian bound on several classes: a price on a node of each class, and every trainer chooses for itself.

The bound is a convex, piecewise linear function of the prices. It is minimised by Dantzig-Wolfe decomposition (in the
dual, Kelley's cutting planes): a linear program over the plans met so far proposes prices, the trainers answer with the
plan that is best at them, until that plan is not new. The program has one row per class and one more, so the basis of
its simplex method is a tiny matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milp.solvers.arrays import Floats, Ints
from milp.solvers.several_classes.tables import ClassTables, Picks

# Kelley's method needs a few tens of plans for two to four classes; beyond this more plans gain next to nothing.
_MOST_PLANS = 400
_MOST_PIVOTS = 200
# Share of the problem's size by which the bound may miss its minimum.
_TIGHT = 1e-7


@dataclass(frozen=True)
class ClassDual:
    """The best prices (K,) found, with their bound of the total worth, and the best plan met that fits the pool."""

    prices: Floats
    bound: float
    plan: Picks


def best_picks(tables: ClassTables, prices: Floats) -> Picks:
    """Return every trainer's best choice at `prices`."""
    rows = np.arange(len(tables.counts))
    column = (tables.worths - prices[tables.kinds] * tables.counts).argmax(axis=1)
    return Picks(tables.kinds[rows, column], tables.counts[rows, column], tables.worths[rows, column])


def minimise(tables: ClassTables, is_over: Callable[[], bool]) -> ClassDual:
    """Find the prices with the least bound, or when `is_over` the best so far: every price gives a true bound."""
    capacity = tables.capacity
    column = tables.stay
    rows = np.arange(len(column))
    plan = Picks(tables.kinds[rows, column], tables.counts[rows, column], tables.worths[rows, column])
    master = _Master(capacity, tables.size)
    master.add(plan)
    prices, bound = np.zeros(len(capacity)), np.inf
    for _ in range(_MOST_PLANS):
        try:
            proposed, value = master.solve()
        except np.linalg.LinAlgError:  # rounding made the basis singular; the prices found so far hold
            break
        picks = best_picks(tables, proposed)
        used = picks.used(capacity)
        reached = picks.total + float(proposed @ (capacity - used))
        if reached < bound:
            prices, bound = proposed, reached
        if (used <= capacity).all() and picks.total > plan.total:
            plan = picks
        if bound - value <= _TIGHT * tables.size or is_over():
            break
        master.add(picks)
    return ClassDual(prices, bound, plan)


class _Master:
    """The linear program: the best mixture of the plans met so far whose average use fits the pool.

    Columns are the unused nodes of each class, then the plans; rows the classes, then the sum of the weights. Worth is
    scaled by the problem's size and nodes by their class's capacity, so that all numbers are near 1.
    """

    def __init__(self, capacity: Ints, size: float) -> None:
        kinds = len(capacity)
        self._capacity, self._size = capacity, size
        self._columns: Floats = np.vstack([np.eye(kinds), np.zeros(kinds)])
        self._worth: Floats = np.zeros(kinds)
        self._basis = np.arange(kinds + 1)
        self._mixture: Floats = np.ones(kinds + 1)

    def add(self, picks: Picks) -> None:
        """Let the mixture use one more plan. The first one must fit the pool."""
        column = np.append(picks.used(self._capacity) / self._capacity, 1.0)
        self._columns = np.column_stack([self._columns, column])
        self._worth = np.append(self._worth, picks.total / self._size)

    def solve(self) -> tuple[Floats, float]:
        """Return the prices (K,) and the worth of the best mixture, by the primal simplex method."""
        goal = np.ones(len(self._basis))
        for _ in range(_MOST_PIVOTS):
            matrix = self._columns[:, self._basis]
            duals = np.linalg.solve(matrix.T, self._worth[self._basis])
            gains = self._worth - duals @ self._columns
            gains[self._basis] = 0.0
            entering = int(gains.argmax())
            if gains[entering] <= 1e-12:
                break
            mixture = np.linalg.solve(matrix, np.column_stack([goal, self._columns[:, entering]]))
            amounts, change = np.maximum(mixture[:, 0], 0.0), mixture[:, 1]
            ratios = np.where(change > 1e-11, amounts / np.where(change > 1e-11, change, 1.0), np.inf)
            leaving = int(ratios.argmin())
            if not np.isfinite(ratios[leaving]):
                break
            self._basis[leaving] = entering
        duals = np.linalg.solve(self._columns[:, self._basis].T, self._worth[self._basis])
        prices: Floats = np.maximum(duals[:-1], 0.0) * self._size / self._capacity
        return prices, float(duals.sum()) * self._size
