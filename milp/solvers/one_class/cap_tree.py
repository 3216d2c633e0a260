"""A tree of the trainers by the caps that bind them: groups, each with a price of a node in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from milp.problem import Problem, TrainerSpec
from milp.solvers.arrays import Floats


@dataclass
class Group:
    """The trainers under one cap: those of smaller groups inside it, and `own`, the rows of all others.

    `price` is the worth of one more node of the group if every trainer makes the best choice, as if all worths were
    concave. It is at least the price of the group around it. Any such prices give a bound, and these the least.
    """

    nodes_max: int
    inner: list[Group] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    price: float = 0.0


class _Slope(NamedTuple):
    """The gain of each of the next `nodes` nodes."""

    gain: float
    nodes: int


def tree(problem: Problem) -> Group:
    """Return the binding caps as groups within the pool; each trainer is in the smallest group that covers it."""
    everybody = frozenset(range(len(problem.trainers)))
    limits = [*sorted(problem.capped_rows, key=lambda cap: len(cap[0])), (everybody, len(problem.nodes))]
    groups: list[tuple[frozenset[int], Group]] = []
    for covered, nodes_max in limits:
        group, inside = Group(nodes_max), frozenset[int]()
        # from the largest down: a group that is inside an inner group is not added again
        for smaller, inner in reversed(groups):
            if smaller <= covered and not smaller & inside:
                group.inner.append(inner)
                inside |= smaller
        group.own = sorted(covered - inside)
        groups.append((covered, group))
    return groups[-1][1]


def set_prices(root: Group, problem: Problem, worths: Sequence[Floats]) -> None:
    """Give every group its price; `worths` are the trainers' by count, -inf for a count that is not allowed."""
    _climb(root, [_hull(problem, trainer, worth) for trainer, worth in zip(problem.trainers, worths, strict=True)])
    _descend(root, 0.0)


def _climb(group: Group, hulls: Sequence[list[_Slope]]) -> list[_Slope]:
    """Set the price at which the group's own cap binds; return the slopes up to the cap, steepest first."""
    slopes = [slope for inner in group.inner for slope in _climb(inner, hulls)]
    slopes += [slope for row in group.own for slope in hulls[row]]
    slopes.sort(reverse=True)
    within: list[_Slope] = []
    left = group.nodes_max
    for slope in slopes:
        if slope.nodes > left:
            group.price = slope.gain
            return [*within, _Slope(slope.gain, left)]
        within.append(slope)
        left -= slope.nodes
    return within


def _descend(group: Group, around: float) -> None:
    group.price = max(group.price, around)
    for inner in group.inner:
        _descend(inner, group.price)


def _hull(problem: Problem, trainer: TrainerSpec, worth: Floats) -> list[_Slope]:
    """Return the rising part of the least concave function above a trainer's worth, linear between these counts."""
    held, top = len(trainer.current), len(worth) - 1
    counts = trainer.sizes or (
        trainer.nodes_min,
        held - 1,
        held,
        held + 1,
        top,
        *trainer.curve_on(problem.classes).nodes,
    )
    hull = [(0, float(worth[0]))]
    slopes: list[_Slope] = []
    for count in sorted({count for count in counts if 0 < count <= top and np.isfinite(worth[count])}):
        value = float(worth[count])
        while slopes and (value - hull[-1][1]) / (count - hull[-1][0]) >= slopes[-1].gain:
            hull.pop()
            slopes.pop()
        if value > hull[-1][1]:
            nodes = count - hull[-1][0]
            slopes.append(_Slope((value - hull[-1][1]) / nodes, nodes))
            hull.append((count, value))
    return slopes
