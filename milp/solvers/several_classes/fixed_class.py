"""The trainers whose class is settled: a knapsack per class, solved for every number of nodes that others may leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.solvers.arrays import Floats, Ints
from milp.solvers.several_classes.reduced_cost import Choices


@dataclass(frozen=True)
class FixedClass:
    """Trainers `rows`, all on one class or on none.

    `worth[i]` (C + 1,) is the most that the first i of them are worth together on at most 0..C nodes, -inf if they
    need more.
    """

    rows: list[int]
    choices: list[tuple[int, Ints, Floats]]
    worth: list[Floats]

    def pick(self, nodes: int) -> dict[int, int]:
        """Return the choice of every trainer, as a place in `Choices`, that is worth most on at most `nodes` nodes."""
        picked: dict[int, int] = {}
        for row, (start, counts, worths), before in zip(
            reversed(self.rows), reversed(self.choices), reversed(self.worth[:-1]), strict=True
        ):
            fits = counts <= nodes
            totals = np.where(fits, before[np.where(fits, nodes - counts, 0)] + worths, -np.inf)
            best = int(totals.argmax())
            picked[row] = start + best
            nodes -= int(counts[best])
        return picked


def settle(choices: Choices, rows: Ints, capacity: int) -> FixedClass:
    """Solve the knapsack of the trainers `rows`, all on the same class, for every number of nodes up to `capacity`."""
    settled = FixedClass(rows.tolist(), [], [np.zeros(capacity + 1)])
    for row in settled.rows:
        part = choices.of(row)
        counts, worths = choices.count[part], choices.worth[part]
        before, after = settled.worth[-1], np.full(capacity + 1, -np.inf)
        for count, worth in zip(counts.tolist(), worths.tolist(), strict=True):
            target = after[count:]
            np.maximum(target, before[: capacity + 1 - count] + worth, out=target)
        settled.choices.append((part.start, counts, worths))
        settled.worth.append(after)
    return settled


def with_price(worth: Floats, price: float) -> Floats:
    """Return (C + 1,): the most worth of 0..C nodes if the settled trainers may sell nodes at `price` each."""
    nodes = price * np.arange(len(worth))
    best: Floats = np.maximum.accumulate(worth - nodes) + nodes
    return best
