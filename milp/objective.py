"""Equations (13) and (16) for given counts, in plain Python: the yardstick that every solver is measured with."""

from __future__ import annotations

import math
from collections.abc import Mapping

from milp.model import Problem, TrainerSpec


def rescale_cost(trainer: TrainerSpec, count: int) -> float:
    """O_j(C_j) R_j: the objective lost while the trainer goes from its current count to `count`, equation (13)."""
    held = len(trainer.current)
    if count == held:
        return 0.0
    return trainer.earns_now * (trainer.up_cost_s if count > held else trainer.down_cost_s)


def outcome(trainer: TrainerSpec, count: int, t_fwd_s: float) -> float:
    """T^fwd O_j(N_j): the weighted objective earned on `count` nodes over `t_fwd_s` seconds, without any stall."""
    return t_fwd_s * trainer.weight * trainer.curve(count)


def objective(problem: Problem, counts: Mapping[str, int]) -> float:
    """Equation (16): the sum over the trainers of outcome less rescale cost."""
    return sum(
        outcome(trainer, counts[trainer.name], problem.t_fwd_s) - rescale_cost(trainer, counts[trainer.name])
        for trainer in problem.trainers
    )


def relative_gap(objective_value: float, bound: float) -> float:
    """(bound - objective) over the larger magnitude of the two, 0 where the bound is reached."""
    return max(0.0, bound - objective_value) / max(abs(bound), abs(objective_value), math.ulp(0.0))
