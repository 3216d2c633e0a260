"""Equations (13) and (16) for a given map, in plain Python: the yardstick that every solver is measured with."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from milp.problem import Problem, TrainerSpec


def rescale_cost(problem: Problem, trainer: TrainerSpec, count: int) -> float:
    """O_j(C_j) R_j: the objective lost while the trainer goes from its current count to `count`, equation (13)."""
    held = len(trainer.current)
    if count == held:
        return 0.0
    return problem.earns_now[trainer.name] * (trainer.up_cost_s if count > held else trainer.down_cost_s)


def outcome(problem: Problem, trainer: TrainerSpec, count: int, classes: Collection[str] | None = None) -> float:
    """T^fwd O_j(N_j): the weighted objective earned on `count` nodes over t_fwd, without any stall.

    `classes` are those of the nodes; it may be left out where the pool has one.
    """
    curve = trainer.curve_on(problem.classes if classes is None else classes)
    return problem.t_fwd_s * trainer.weight * curve(count)


def objective(problem: Problem, counts: Mapping[str, int]) -> float:
    """Equation (16) for the counts of a pool of one class: the sum over the trainers of outcome less rescale cost."""
    return sum(
        outcome(problem, trainer, counts[trainer.name]) - rescale_cost(problem, trainer, counts[trainer.name])
        for trainer in problem.trainers
    )


def objective_of(problem: Problem, assignment: Mapping[str, Collection[str]]) -> float:
    """Equation (16) for named nodes, of whatever classes."""
    total = 0.0
    for trainer in problem.trainers:
        nodes = assignment[trainer.name]
        earned = outcome(problem, trainer, len(nodes), problem.classes_of(nodes))
        total += earned - rescale_cost(problem, trainer, len(nodes))
    return total


def most_earned(problem: Problem) -> float:
    """What all trainers would earn over t_fwd at the peaks of their curves, without limits and costs."""
    return problem.t_fwd_s * sum(
        trainer.weight * max(max(curve.values) for curve in (trainer.curve, *trainer.class_curves.values()))
        for trainer in problem.trainers
    )


def relative_gap(objective_value: float, bound: float) -> float:
    """(bound - objective) over the larger magnitude of the two, 0 where the bound is reached."""
    return max(0.0, bound - objective_value) / max(abs(bound), abs(objective_value), math.ulp(0.0))
