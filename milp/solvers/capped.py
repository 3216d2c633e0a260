"""Caps per user and per account by dynamic programming: exact, for one class of nodes, where caps nest or are apart.

The best total of some trainers is a function of how many nodes they share. That of a trainer is its part of equation
(16); that of two groups together is the max-plus convolution of theirs; a cap cuts the function of its group off. Caps
that nest form a tree, and the function at its root, the whole pool, has the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from milp.assigning import assign
from milp.keeping import keep
from milp.model import Problem, TrainerSpec
from milp.objective import most_earned, objective_of, rescale_cost
from milp.solvers.base import Feature, Limits, Outcome, Solver
from milp.solvers.tables import TIE_BREAK, Floats, Ints, worst_that_matters

# Sums that are made at once: few enough for the processor's cache, many enough for numpy.
_BLOCK = 1 << 17


@dataclass
class _Group:
    """The trainers under one cap: those of smaller groups inside it, and `own` ones beside these, by their place."""

    nodes_max: int
    inner: list[_Group] = field(default_factory=list)
    own: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Best:
    """What trainers are worth together on 0, 1, ... nodes (-inf: never), and how that comes about.

    `taken` (as long as `worth`) is how many of the nodes are those of `part`; the rest are those of `rest`. A single
    trainer, `row`, has neither.
    """

    worth: Floats
    row: int | None = None
    taken: Ints | None = None
    part: _Best | None = None
    rest: _Best | None = None


def _run(problem: Problem, limits: Limits) -> Outcome:
    if not problem.trainers or not problem.nodes:
        return Outcome({trainer.name: () for trainer in problem.trainers}, bound=None)
    worths = _worths(problem)
    best = _best(_tree(problem), worths)
    counts: dict[int, int] = {}
    _trace(best, int(best.worth.argmax()), counts)
    by_name = {trainer.name: counts.get(row, 0) for row, trainer in enumerate(problem.trainers)}
    return Outcome(assign(problem, by_name), bound=None)


def _worths(problem: Problem) -> list[Floats]:
    """Each trainer's terms of (16) by its count, less a tie-break for every node that changes hands.

    What is too bad to matter is cut off, as for `exact`: it would set the scale of the tie-breaks.
    """
    plain = [_worth(problem, trainer) for trainer in problem.trainers]
    most = np.array([worth.max() for worth in plain])
    floors = worst_that_matters(most, objective_of(problem, keep(problem)), most_earned(problem))
    for worth, floor in zip(plain, floors, strict=True):
        np.maximum(worth, floor, out=worth, where=np.isfinite(worth))
    size = sum(float(np.abs(worth[np.isfinite(worth)]).max()) for worth in plain) or 1.0
    tie_break = TIE_BREAK * size / max(2 * len(problem.nodes), 1)
    return [
        worth - tie_break * np.abs(np.arange(len(worth)) - len(trainer.current))
        for trainer, worth in zip(problem.trainers, plain, strict=True)
    ]


def _worth(problem: Problem, trainer: TrainerSpec) -> Floats:
    held, top = len(trainer.current), min(trainer.nodes_max, len(problem.nodes))
    counts = np.arange(top + 1)
    curve = trainer.curve_on(problem.classes)
    worth: Floats = problem.t_fwd_s * trainer.weight * np.interp(counts, curve.nodes, curve.values)
    worth[counts < held] -= rescale_cost(problem, trainer, held - 1)
    worth[counts > held] -= rescale_cost(problem, trainer, held + 1)
    allowed = counts >= trainer.nodes_min
    if trainer.sizes is not None:
        allowed &= np.isin(counts, trainer.sizes)
    allowed[0] = True
    worth[~allowed] = -np.inf
    return worth


def _tree(problem: Problem) -> _Group:
    """The binding caps as groups within the pool; each trainer is in the smallest group that covers it."""
    everybody = frozenset(range(len(problem.trainers)))
    limits = [*sorted(problem.capped_rows, key=lambda cap: len(cap[0])), (everybody, len(problem.nodes))]
    groups: list[tuple[frozenset[int], _Group]] = []
    for covered, nodes_max in limits:
        group, inside = _Group(nodes_max), frozenset[int]()
        # from the largest down: what is in a group that is in this one is not this one's own
        for smaller, inner in reversed(groups):
            if smaller <= covered and not smaller & inside:
                group.inner.append(inner)
                inside |= smaller
        group.own = sorted(covered - inside)
        groups.append((covered, group))
    return groups[-1][1]


def _best(group: _Group, worths: Sequence[Floats]) -> _Best:
    parts = [_best(inner, worths) for inner in group.inner]
    parts += [_Best(worths[row], row=row) for row in reversed(group.own)]
    nothing = _Best(np.zeros(1))
    return reduce(lambda rest, part: _together(rest, part, group.nodes_max), parts, nothing)


def _together(rest: _Best, part: _Best, nodes_max: int) -> _Best:
    """Two sets of trainers as one, on `nodes_max` nodes at most; of equal ways the one with more for `part`."""
    alone = part.worth[nodes_max::-1]  # from the most nodes down, so that the first of equal ways has most of them
    width, length = len(alone), min(nodes_max + 1, len(rest.worth) + len(part.worth) - 1)
    padded = np.full(length + width - 1, -np.inf)
    fits = min(length, len(rest.worth))
    padded[width - 1 : width - 1 + fits] = rest.worth[:fits]
    # row n, column i: `part` on width - 1 - i nodes, `rest` on the others of n
    ways = np.lib.stride_tricks.sliding_window_view(padded, width)
    worth, column = np.empty(length), np.empty(length, np.int64)
    step = max(1, _BLOCK // width)
    for start in range(0, length, step):
        block = ways[start : start + step] + alone
        best = block.argmax(axis=1)
        column[start : start + step] = best
        worth[start : start + step] = block[np.arange(len(block)), best]
    return _Best(worth, taken=width - 1 - column, part=part, rest=rest)


def _trace(best: _Best, nodes: int, counts: dict[int, int]) -> None:
    """Find the trainers' counts (by row) that make `best` on just so many nodes."""
    while best.part is not None and best.rest is not None and best.taken is not None:
        taken = int(best.taken[nodes])
        _trace(best.part, taken, counts)
        best, nodes = best.rest, nodes - taken
    if best.row is not None:
        counts[best.row] = nodes


SOLVER = Solver(
    name="capped",
    summary="the optimum for one class of nodes with caps per user or account, by dynamic programming over counts",
    features=frozenset({Feature.CAPS}),
    proves=True,
    run=_run,
)
