"""The Lagrangian bound: each node has one price, and every trainer chooses for itself.

With the price `multiplier` on each node the problem splits into one choice per trainer. The least total over all prices
bounds equation (16) from above; for interchangeable nodes it is the bound of the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.solvers.arrays import Floats, Ints
from milp.solvers.one_class.tables import Tables

# A step halves the bracket of the multiplier at least every second time, and doubles have 53 bits.
_MOST_STEPS = 200


@dataclass(frozen=True)
class Dual:
    """The best multiplier found, with its bound of the value (of `Tables.values`, tie-break included).

    `frugal` and `greedy` (J,) are columns of `Tables.options`. Both are best choices at the multiplier: the first fits
    the capacity, the second does so only if all trainers can have their favourite choice.
    """

    multiplier: float
    bound: float
    frugal: Ints
    greedy: Ints


@dataclass(frozen=True)
class _Line:
    """The bound as a linear function of the multiplier, for one choice of every trainer."""

    chosen: Ints
    worth: float
    used: int

    def at(self, multiplier: float, capacity: int) -> float:
        return self.worth + multiplier * (capacity - self.used)


def minimise(tables: Tables) -> Dual:
    """Find the multiplier with the least bound.

    The bound is convex and piecewise linear in the multiplier. A bracket is kept whose left line falls and whose
    right line does not; the next multiplier is where the two meet (or the middle, when that did not halve the bracket),
    and when no line lies above their meeting point, that is the minimum. Every multiplier gives a true bound, so
    stopping early costs tightness only.
    """
    capacity, options, values = tables.capacity, tables.options, tables.values
    rows, sizes = np.arange(len(options)), options.astype(np.float64)

    def line(multiplier: float) -> _Line:
        # The first of equal scores is the one with the fewest nodes.
        chosen: Ints = (values - multiplier * sizes).argmax(axis=1)
        return _Line(chosen, float(values[rows, chosen].sum()), int(options[rows, chosen].sum()))

    left = line(0.0)
    if left.used <= capacity:
        return Dual(0.0, left.worth, left.chosen, left.chosen)
    low, high = 0.0, _dearest(tables)
    right = line(high)
    while right.used > capacity:  # only if rounding swallowed the margin above the best value
        high *= 2
        right = line(high)
    noise = 1e-15 * tables.size
    multiplier = high
    for _ in range(_MOST_STEPS):
        width = high - low
        multiplier = (left.worth - right.worth) / (left.used - right.used)
        meeting = left.at(multiplier, capacity)
        if not low < multiplier < high:
            break
        middle = line(multiplier)
        if middle.at(multiplier, capacity) <= meeting + noise:
            break
        if middle.used > capacity:
            left, low = middle, multiplier
        else:
            right, high = middle, multiplier
        if high - low > width / 2:
            half = low + (high - low) / 2
            middle = line(half)
            if middle.used > capacity:
                left, low = middle, half
            else:
                right, high = middle, half
    multiplier = min(max(multiplier, low), high)
    bound = max(line(multiplier).at(multiplier, capacity), left.at(multiplier, capacity))
    return Dual(multiplier, bound, right.chosen, left.chosen)


def _dearest(tables: Tables) -> float:
    """Return a price at which no trainer wants a node: just above the best value per node over having none."""
    gains: Floats = tables.values - tables.values[:, :1]
    return float((gains / np.maximum(tables.options, 1)).max()) * (1 + 1e-12)
