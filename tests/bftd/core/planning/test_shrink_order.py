"""Which nodes a trainer keeps that has to give some back."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.core.model.domain import Settings
from bftd.protocol.registration import Held
from tests.bftd.builders import Core, lease, registration

FREE: Any = {"up_cost_s": 0.0, "down_cost_s": 0.0, "warm_up_s": 0.0}


def half_warm(windows: dict[str, float] | None = None) -> Core:
    """A trainer that works on n3 and n4 and whose n1 and n2, which a plan prefers, warm up."""
    core = Core(Settings().changed(objective="throughput"))
    core.arrive(registration("1", curve=((1, 100.0), (2, 190.0), (4, 200.0)), **FREE))
    core.pool("n3", "n4", windows=windows)
    core.place_all()
    core.pool("n1", "n2", "n3", "n4", windows=windows)
    core.place_all("placed")
    assert core.nodes("1") == {"n1", "n2", "n3", "n4"}
    return core


@pytest.mark.parametrize("windows", [None, {"n3": 600.0, "n4": 600.0}])
def test_regression_a_plan_took_the_nodes_that_trained_and_left_those_that_warmed_up(
    windows: dict[str, float] | None,
) -> None:
    core = half_warm(windows)
    core.arrive(registration("2", nodes_max=2, curve=((1, 500.0), (2, 1000.0)), **FREE))
    assert core.nodes("1") == {"n3", "n4"}
    for item in core.leases("1", live=False):
        core.pilots.pop(item.job_id or "", None)
        core.report("1", lease(item.id, "ended"))
    core.pool("n1", "n2", "n3", "n4", windows=windows)
    assert core.nodes("2") == {"n1", "n2"}, "the other trainer gets what was given back"


def test_where_nothing_may_grow_a_trainer_with_too_many_nodes_keeps_those_that_work_too() -> None:
    core = half_warm()
    core.pool("n1", "n2", "n3", "n4", hold="a job waits without a plan")
    held = [Held(item.id, item.node, item.job_id or "") for item in core.leases("1")]
    core.arrive(registration("1", nodes_max=2, **FREE), *held)
    assert core.nodes("1") == {"n3", "n4"}


def test_a_node_that_works_but_left_the_pool_is_not_kept() -> None:
    core = half_warm()
    core.arrive(registration("2", nodes_max=2, curve=((1, 500.0), (2, 1000.0)), **FREE))
    core.pool("n1", "n2", "n3")
    assert core.nodes("1") <= {"n1", "n2", "n3"}
    assert "n3" in core.nodes("1")
