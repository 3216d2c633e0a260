"""Caps per user and per account by dynamic programming: exact for one class of nodes if caps nest or are disjoint.

The best total of some trainers is a function of the number of nodes they share. That of one trainer is its part of
equation (16); that of two groups together is the max-plus convolution of theirs; a cap cuts off the function of its
group. Caps that nest form a tree, and the function at its root, the whole pool, has the optimum. Few points of these
functions matter. With a price on a node of every group no plan is worth more than a bound, and a plan that uses a point
loses at least as much against it as the point alone does. So only points that lose little are tried: the plan found is
optimal once it is no further from the bound than the points left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from milp.assignments import assign, keep
from milp.problem import Problem, TrainerSpec
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.arrays import Bools, Floats, worst_that_matters
from milp.solvers.one_class.cap_tree import Group, set_prices, tree
from milp.solvers.one_class.utility_arrays import Worth
from milp.utility import TIE_BREAK, objective_of, tie_break

# Rounding of a sum of worths, as a share of their size.
_NOISE = 1e-13
# The loss allowed for a point in the first round, as a share of that size, and the factor for each next round.
_FIRST_REACH = 1e-4
_MORE_REACH = 8.0


class _OutOfTimeError(Exception):
    """The time limit has passed in the middle of a round."""


@dataclass(frozen=True)
class _Best:
    """The worth of some trainers together on 0, 1, ... nodes (-inf: never, or left out), and how it is reached.

    `most` is the most that they are worth less the cost of their nodes at the price of their group. The trainers are
    those of `part` and of `rest` together; a single trainer, `row`, has neither.
    """

    worth: Floats
    most: float
    row: int | None = None
    part: _Best | None = None
    rest: _Best | None = None


def _run(problem: Problem, effort: Effort) -> SolverAnswer:
    if not problem.trainers or not problem.nodes:
        return SolverAnswer({trainer.name: () for trainer in problem.trainers}, bound=None)
    worths, size = _worths(problem)
    root = tree(problem)
    set_prices(root, problem, worths)
    found, bound, proven = _solve(root, worths, size, effort.is_over)
    # the tie-breaks are not part of (16)
    bound += TIE_BREAK * size
    if found is None:
        return SolverAnswer(None, bound)
    counts: dict[int, int] = {}
    _trace(found, int(found.worth.argmax()), counts)
    by_name = {trainer.name: counts.get(row, 0) for row, trainer in enumerate(problem.trainers)}
    return SolverAnswer(assign(problem, by_name), None if proven else bound)


def _solve(
    root: Group, worths: Sequence[Floats], size: float, is_over: Callable[[], bool]
) -> tuple[_Best | None, float, bool]:
    """Return the best plans found by node count, an upper bound, and whether the best of them is proven optimal."""
    found: _Best | None = None
    bound, reach = inf, _FIRST_REACH
    try:
        while True:
            best = _best(root, worths, reach * size, is_over)
            bound = best.most + root.price * root.nodes_max
            total = float(best.worth.max())
            found = best if np.isfinite(total) else found
            if total >= bound - reach * size:
                return found, bound, True
            # A point that loses more than the plan in hand is in no better plan.
            reach = min(reach * _MORE_REACH, (bound - total) / size + _NOISE)
            if reach > 1.0:
                reach = inf
    except _OutOfTimeError:
        return found, bound, False


def _worths(problem: Problem) -> tuple[list[Floats], float]:
    """Return each trainer's terms of (16) by count, less a tie-break for every node that changes hands; and their size.

    Worths too low to matter are cut off, as for `exact`: they would set the scale of the tie-breaks. A count that is
    not allowed, or is worth less than a smaller one, is left out (-inf).
    """
    value = Worth(problem)
    tops = [min(trainer.nodes_max, len(problem.nodes)) for trainer in problem.trainers]
    first = np.cumsum([0, *(top + 1 for top in tops)])
    rows = np.repeat(np.arange(len(tops)), np.diff(first))
    counts = np.arange(first[-1]) - first[rows]
    never = ~np.concatenate([_allowed(trainer, top) for trainer, top in zip(problem.trainers, tops, strict=True)])
    plain = value(rows, counts)
    most = np.maximum.reduceat(np.where(never, -np.inf, plain), first[:-1])
    value.floor = worst_that_matters(most, objective_of(problem, keep(problem)), value.most_earned())
    largest = np.where(never, 0.0, np.abs(np.maximum(plain, value.floor[rows])))
    size = float(np.maximum.reduceat(largest, first[:-1]).sum()) or 1.0
    value.tie_break = tie_break(size, len(problem.nodes))
    worths = np.split(np.where(never, -np.inf, value(rows, counts)), first[1:-1])
    for worth in worths:
        worth[worth < np.maximum.accumulate(worth)] = -np.inf
    return worths, size


def _allowed(trainer: TrainerSpec, top: int) -> Bools:
    """Return whether the trainer may have each of the counts 0..top."""
    counts = np.arange(top + 1)
    allowed: Bools = counts >= trainer.nodes_min
    if trainer.sizes is not None:
        allowed &= np.isin(counts, trainer.sizes)
    allowed[0] = True
    return allowed


def _best(group: Group, worths: Sequence[Floats], reach: float, is_over: Callable[[], bool]) -> _Best:
    """Combine the group's trainers, without points that lose more than `reach`."""
    price = group.price
    parts = []
    for inner in group.inner:
        best = _best(inner, worths, reach, is_over)
        parts.append(replace(best, most=best.most + (inner.price - price) * inner.nodes_max))
    for row in reversed(group.own):
        worth = worths[row]
        parts.append(_Best(worth, float((worth - price * np.arange(len(worth))).max()), row=row))
    together = _Best(np.zeros(1), most=0.0)
    for part in parts:
        if is_over():
            raise _OutOfTimeError
        part = replace(part, worth=_within(part.worth, part.most, price, reach))
        most = together.most + part.most
        worth = _within(_sums(together.worth, part.worth, group.nodes_max), most, price, reach)
        together = _Best(worth, most, part=part, rest=together)
    return together


def _within(worth: Floats, most: float, price: float, reach: float) -> Floats:
    """Leave out points that lose more than `reach` against `most`."""
    lost = most - (worth - price * np.arange(len(worth)))
    return np.where(lost <= reach, worth, -np.inf)


def _sums(one: Floats, other: Floats, nodes_max: int) -> Floats:
    """Return the best sum of one point of each for 0, 1, ... nodes in all, at most `nodes_max` (-inf: none)."""
    points = [np.flatnonzero(np.isfinite(worth)) for worth in (one, other)]
    if not all(map(len, points)):
        return np.full(1, -np.inf)
    (few, fewer), (many, more) = sorted(zip(points, (one, other), strict=True), key=lambda item: len(item[0]))
    start, stop = int(many[0]), int(many[-1]) + 1
    length = min(nodes_max, int(few[-1]) + stop - 1) + 1
    best = np.full(length, -np.inf)
    for nodes, worth in zip(few.tolist(), fewer[few].tolist(), strict=True):
        into = best[start + nodes : stop + nodes]
        np.maximum(into, more[start : start + len(into)] + worth, out=into)
    return best


def _trace(best: _Best, nodes: int, counts: dict[int, int]) -> None:
    """Find the trainers' counts (by row) that make up `best` on exactly `nodes` nodes; ties favour `part`."""
    while best.part is not None and best.rest is not None:
        part, rest = best.part.worth, best.rest.worth
        most, least = min(nodes, len(part) - 1), max(0, nodes - len(rest) + 1)
        taken = np.arange(most, least - 1, -1)
        mine = int(taken[(part[taken] + rest[nodes - taken]).argmax()])
        _trace(best.part, mine, counts)
        best, nodes = best.rest, nodes - mine
    if best.row is not None:
        counts[best.row] = nodes


SOLVER = Solver(
    name="capped",
    summary="the optimum for one class of nodes with caps per user or account, by dynamic programming over counts",
    features=frozenset({Feature.CAPS}),
    proves=True,
    run=_run,
)
