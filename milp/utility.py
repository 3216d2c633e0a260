"""Equations (13) and (16) in plain Python: the yardstick for every solver, and helpers for solvers.

A trainer's terms of (16) are computed only here and, for arrays, in `milp.solvers.one_class.utility_arrays`. Besides
the worth of a given map there are the *pieces*: all that a trainer may do next, as straight lines over ranges of its
node count. No migration (6) means that its new nodes contain its current ones or are among them, so on several node
classes it may grow, stay or shrink on the classes that it is on, and start on any.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, pairwise

from milp.curves import Curve
from milp.problem import Problem, TrainerSpec

# The cost of all nodes changing hands, as a share of the problem's total value: enough to decide between plans of equal
# value, too little to make a better plan lose.
TIE_BREAK = 1e-10


def rescale_cost(problem: Problem, trainer: TrainerSpec, count: int) -> float:
    """Return O_j(C_j) R_j, equation (13): the objective lost while the trainer goes from its count to `count`."""
    held = len(trainer.current)
    if count == held:
        return 0.0
    return problem.earns_now[trainer.name] * (trainer.up_cost_s if count > held else trainer.down_cost_s)


def earned(problem: Problem, trainer: TrainerSpec, count: int, curve: Curve) -> float:
    """Return T^fwd w_j O_j(N_j): the weighted objective earned on `count` nodes over t_fwd, by `curve`."""
    return problem.t_fwd_s * trainer.weight * curve(count)


def outcome(problem: Problem, trainer: TrainerSpec, count: int, classes: Collection[str] | None = None) -> float:
    """Return what is earned on `count` nodes over t_fwd, without any stall.

    `classes` are those of the nodes; they may be left out if the pool has one class.
    """
    return earned(problem, trainer, count, trainer.curve_on(problem.classes if classes is None else classes))


def worth(problem: Problem, trainer: TrainerSpec, count: int, curve: Curve) -> float:
    """Return the trainer's terms of equation (16) on `count` nodes of the classes that `curve` is for."""
    return earned(problem, trainer, count, curve) - rescale_cost(problem, trainer, count)


def objective(problem: Problem, counts: Mapping[str, int]) -> float:
    """Return equation (16) for the counts in a pool of one class: the sum of their worths to the trainers."""
    return sum(worth(problem, t, counts[t.name], t.curve_on(problem.classes)) for t in problem.trainers)


def objective_of(problem: Problem, assignment: Mapping[str, Collection[str]]) -> float:
    """Return equation (16) for named nodes of any classes."""
    total = 0.0
    for trainer in problem.trainers:
        nodes = assignment[trainer.name]
        total += worth(problem, trainer, len(nodes), trainer.curve_on(problem.classes_of(nodes)))
    return total


def most_earned(problem: Problem) -> float:
    """Return what all trainers would earn over t_fwd at the peaks of their curves, without limits and costs."""
    return problem.t_fwd_s * sum(
        trainer.weight * max(max(curve.values) for curve in (trainer.curve, *trainer.class_curves.values()))
        for trainer in problem.trainers
    )


def relative_gap(objective_value: float, bound: float) -> float:
    """Return (bound - objective) over the larger magnitude of the two, 0 if the bound is reached."""
    return max(0.0, bound - objective_value) / max(abs(bound), abs(objective_value), math.ulp(0.0))


def tie_break(size: float, nodes: int) -> float:
    """Return the cost of a node changing hands, if plans add up to `size` and the pool has `nodes` nodes.

    A plan gives up at most all nodes and takes as many, so its tie-breaks are at most `TIE_BREAK` of that size.
    """
    return TIE_BREAK * size / max(2 * nodes, 1)


@dataclass(frozen=True)
class Piece:
    """Counts `low`..`high` (1 or more), all allowed for the trainer; the worth is linear between them.

    `worth_low` and `worth_high` are the trainer's terms of (16). `change` is -1, 0 or 1: fewer nodes, the very same
    ones, more. The nodes are of `classes` only, not necessarily of all of them.
    """

    classes: frozenset[str]
    low: int
    high: int
    worth_low: float
    worth_high: float
    change: int

    @property
    def slope(self) -> float:
        """Worth of one more node."""
        return (self.worth_high - self.worth_low) / (self.high - self.low) if self.high > self.low else 0.0


def idle_worth(problem: Problem, trainer: TrainerSpec) -> float:
    """Return the trainer's terms of (16) when it gets nothing: the cost of giving up its nodes."""
    return -rescale_cost(problem, trainer, 0)


def pieces(problem: Problem, trainer: TrainerSpec) -> tuple[Piece, ...]:
    """Return every allowed count but 0, class choice by class choice, each in ascending order of counts."""
    held_on = problem.classes_of(trainer.current) if trainer.current else frozenset[str]()
    return tuple(
        piece
        for classes in class_sets(problem, trainer)
        for change, low, high in _ranges(problem, trainer, classes, held_on)
        for piece in _split(problem, trainer, classes, change, low, high)
    )


def most_worth(problem: Problem, trainer: TrainerSpec) -> float:
    """Return the most that a trainer can contribute to (16) if it is alone in the pool."""
    worths = ((piece.worth_low, piece.worth_high) for piece in pieces(problem, trainer))
    return max(idle_worth(problem, trainer), *chain.from_iterable(worths), float("-inf"))


def class_sets(problem: Problem, trainer: TrainerSpec) -> tuple[frozenset[str], ...]:
    """Return the sets of classes that the trainer may be on.

    These are single classes; for a trainer that mixes classes, the largest set of each rate.
    """
    allowed = tuple(filter(trainer.may_use, problem.classes))
    if not trainer.mixes_classes:
        return tuple(frozenset({name}) for name in allowed)
    largest: dict[Curve, frozenset[str]] = {}
    every = range(1, len(allowed) + 1)
    for classes in chain.from_iterable(combinations(allowed, size) for size in every):
        curve = trainer.curve_on(classes)
        largest[curve] = largest.get(curve, frozenset()) | set(classes)
    return tuple(largest.values())


def _ranges(
    problem: Problem, trainer: TrainerSpec, classes: frozenset[str], held_on: frozenset[str]
) -> Iterator[tuple[int, int, int]]:
    """Yield (change, low, high) of the counts on these classes that no migration and nodes_min, nodes_max leave."""
    held = len(trainer.current)
    most = min(trainer.nodes_max, sum(problem.class_sizes[name] for name in classes))
    if held_on & classes:
        kept = sum(problem.class_of[node] in classes for node in trainer.current)
        yield -1, trainer.nodes_min, min(held - 1, kept, trainer.nodes_max)
    if held_on <= classes:
        if held:
            yield 0, max(held, trainer.nodes_min), min(held, most)
        yield 1, max(held + 1, trainer.nodes_min), most


def _split(
    problem: Problem, trainer: TrainerSpec, classes: frozenset[str], change: int, low: int, high: int
) -> Iterator[Piece]:
    if low > high:
        return
    curve = trainer.curve_on(classes)
    if trainer.sizes is not None:
        steps = [(size, size) for size in trainer.sizes if low <= size <= high]
    else:
        inner = [point for point in curve.nodes if low < point < high]
        ends = [low, *inner, high]
        steps = list(pairwise(ends)) if low < high else [(low, low)]
    for begin, end in steps:
        low_worth, high_worth = (worth(problem, trainer, count, curve) for count in (begin, end))
        yield Piece(classes, begin, end, low_worth, high_worth, change)
