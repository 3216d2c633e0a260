"""Small builders: a test says only what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milp import Curve, NodeSpec, Problem, TrainerSpec


@pytest.fixture
def trainer() -> Callable[..., TrainerSpec]:
    """A trainer of 1..8 nodes that gains 1.0/s a node, 10 s to grow and 5 s to shrink; keywords override."""

    def build(name: str = "a", **changes: Any) -> TrainerSpec:
        fields: dict[str, Any] = {
            "nodes_min": 1,
            "nodes_max": 8,
            "up_cost_s": 10.0,
            "down_cost_s": 5.0,
            "curve": Curve((0, 8), (0.0, 8.0)),
        }
        return TrainerSpec(name, **{**fields, **changes})

    return build


@pytest.fixture
def problem() -> Callable[..., Problem]:
    """A problem on n0, n1, ... of one class."""

    def build(nodes: int, *trainers: TrainerSpec, t_fwd_s: float = 100.0) -> Problem:
        return Problem(tuple(NodeSpec(f"n{i}") for i in range(nodes)), trainers, t_fwd_s)

    return build
