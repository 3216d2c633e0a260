"""Nodes that a trainer shares with regular jobs: nobody else is lent them."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.core.model.domain import LeaseChanged, PoolNode
from bftd.service import status
from tests.bftd.builders import Core, granted, of, registration, revoked
from tests.support.messages import wording


def shared(name: str, pilot: str | None) -> dict[str, PoolNode]:
    why = wording("pool.judgement.runs_pilot_on_part", beside=5)
    return {name: PoolNode(name, "MIXED", True, why, pilot=pilot, co_located="5")}


def holding(*names: str) -> Core:
    """A trainer at work on these nodes."""
    core = Core()
    core.pool(*names)
    core.arrive(registration("1", nodes_max=len(names), curve=((1, 100.0), (2, 101.0))))
    core.pool(*names)
    core.place_all()
    assert core.nodes("1") == set(names)
    return core


def on(core: Core, node: str) -> str:
    return next(job for job, where in core.pilots.items() if where == node)


def test_the_job_on_a_part_of_a_node_is_shown_under_its_name_of_0_1_too() -> None:
    core = Core()
    core.pool("n2", out=shared("n1", None))
    shown = status.node_details(core.state, "n1", core.time_s)
    assert shown is not None
    assert shown["co_located"] == shown["beside"] == "5"


def test_a_shared_node_stays_with_its_trainer() -> None:
    core = holding("n1", "n2")
    for _ in range(3):
        assert not revoked(core.pool("n2", out=shared("n1", on(core, "n1"))))
    assert core.nodes("1") == {"n1", "n2"}


@pytest.mark.parametrize("how", [{"co_located": "5"}, {"unheard": True}])
def test_who_gives_a_node_to_another_keeps_one_that_is_shared_or_that_slurm_has_not_heard_of(
    how: dict[str, Any],
) -> None:
    for name in ("n1", "n2"):
        core = holding("n1", "n2")
        (other,) = {"n1", "n2"} - {name}
        out = {name: PoolNode(name, "MIXED", True, "runs a pilot", pilot=on(core, name), **how)}
        core.pool(other, out=out)
        core.arrive(registration("2", nodes_max=1, curve=((1, 100.0),)))
        for _ in range(3):
            core.pool(other, out=out, after_s=30.0)
        assert core.nodes("1") == {name}
        assert {lease.node for lease in core.leases("1", live=False)} == {other}


def test_a_shared_node_that_nobody_holds_any_more_is_lent_to_nobody() -> None:
    core = Core()
    core.arrive(registration("1"))
    for _ in range(3):
        assert not granted(core.pool(out=shared("n1", None)))
    assert [lease.node for lease in granted(core.pool("n1"))] == ["n1"]
    assert len(of(core.actions, LeaseChanged, kind="granted")) == 1
