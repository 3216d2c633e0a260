"""Which nodes a trainer keeps that has to give some back."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.core.model.domain import Settings
from bftd.core.model.events import Configured
from bftd.protocol.registration import Held
from tests.bftd.builders import Core, lease, registration

FREE: Any = {"up_cost_s": 0.0, "down_cost_s": 0.0, "warm_up_s": 0.0}


def half_warm(windows: dict[str, float] | None = None) -> Core:
    """A trainer that works on n1 and n2 and whose n3 and n4, which a plan prefers, warm up."""
    core = Core(Settings().changed(objective="throughput"))
    core.arrive(registration("1", curve=((1, 100.0), (2, 190.0), (4, 200.0)), **FREE))
    core.pool("n1", "n2", windows=windows)
    core.place_all()
    core.pool("n1", "n2", "n3", "n4", windows=windows)
    core.place_all("placed")
    assert core.nodes("1") == {"n1", "n2", "n3", "n4"}
    return core


@pytest.mark.parametrize("windows", [None, {"n1": 600.0, "n2": 600.0}])
def test_regression_a_plan_took_the_nodes_that_trained_and_left_those_that_warmed_up(
    windows: dict[str, float] | None,
) -> None:
    core = half_warm(windows)
    core.arrive(registration("2", nodes_max=2, curve=((1, 500.0), (2, 1000.0)), **FREE))
    assert core.nodes("1") == {"n1", "n2"}
    for item in core.leases("1", live=False):
        core.pilots.pop(item.job_id or "", None)
        core.report("1", lease(item.id, "ended"))
    core.pool("n1", "n2", "n3", "n4", windows=windows)
    assert core.nodes("2") == {"n3", "n4"}, "the other trainer gets what was given back"


def test_where_nothing_may_grow_a_trainer_with_too_many_nodes_keeps_those_that_work_too() -> None:
    core = half_warm()
    core.pool("n1", "n2", "n3", "n4", hold="a job waits without a plan")
    held = [Held(item.id, item.node, item.job_id or "") for item in core.leases("1")]
    core.arrive(registration("1", nodes_max=2, **FREE), *held)
    assert core.nodes("1") == {"n1", "n2"}


def test_a_node_that_works_but_left_the_pool_is_not_kept() -> None:
    core = half_warm()
    core.arrive(registration("2", nodes_max=2, curve=((1, 500.0), (2, 1000.0)), **FREE))
    core.pool("n1", "n3", "n4")
    assert core.nodes("1") <= {"n1", "n3", "n4"}
    assert "n1" in core.nodes("1")


def test_nodes_that_slurm_takes_last_are_lent_first_and_kept_last() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3))
    core.pool("n1", "n2", "n9", "n10")
    assert core.nodes("1") == {"n2", "n9", "n10"}, "n1 stays idle for a regular job"
    assert [item.node for item in core.leases("1")] == ["n2", "n9", "n10"], "Slurm preempts the oldest pilots first"
    core.place_all()
    core.apply(Configured(core.time_s, Settings().changed(max_nodes=1)))
    assert core.nodes("1") == {"n10"}
