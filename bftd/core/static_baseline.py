"""The rate of trainers on dedicated nodes: the A_s of U = A_e / A_s, section 4.1.2 of the paper. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor

import milp
from bftd.core.planning import objective
from milp import Points
from milp.curves import Curve
from milp.problem import NodeSpec, Problem, TrainerSpec


@dataclass(frozen=True, slots=True)
class WaitingTrainer:
    """A trainer in a plan without costs: its sizes, its weight, and its curve in samples/s from (0, 0)."""

    low: int
    high: int
    only: tuple[int, ...] | None
    weight: float
    curve: Points


def best_rate(trainers: Sequence[WaitingTrainer], nodes: float, goal: str, *, measured: bool = False) -> float:
    """Return the samples/s of these trainers on the best allocation of `nodes` nodes by the objective `goal`.

    Nodes stay and resizes cost nothing. Between whole numbers of nodes the rate is linear. `measured` is passed to
    `bftd.core.planning.objective.values`.
    """
    wanting = tuple(trainers)
    most = sum(item.high for item in wanting)
    if nodes >= most:
        return _whole(wanting, most, goal, measured)
    low = _whole(wanting, floor(nodes), goal, measured)
    if nodes == floor(nodes):
        return low
    return low + (_whole(wanting, ceil(nodes), goal, measured) - low) * (nodes - floor(nodes))


@lru_cache(maxsize=1 << 11)
def _whole(trainers: tuple[WaitingTrainer, ...], nodes: int, goal: str, measured: bool) -> float:
    if not trainers or nodes <= 0:
        return 0.0
    pool = tuple(NodeSpec(str(place)) for place in range(nodes))
    specs = tuple(_spec(str(place), item, goal, measured) for place, item in enumerate(trainers))
    plan = milp.solve(Problem(pool, specs, 1.0), "exact", explain=False)
    return sum(milp.interpolate(item.curve, plan.counts[spec.name]) for spec, item in zip(specs, trainers, strict=True))


def _spec(name: str, item: WaitingTrainer, goal: str, measured: bool) -> TrainerSpec:
    points, weight = objective.values(item.curve, goal, item.weight, measured=measured)
    return TrainerSpec(
        name=name,
        nodes_min=item.low,
        nodes_max=item.high,
        up_cost_s=0.0,
        down_cost_s=0.0,
        curve=Curve(tuple(size for size, _ in points), tuple(value for _, value in points)),
        sizes=item.only,
        weight=weight,
    )
