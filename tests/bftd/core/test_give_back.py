"""How long a give-back took, whatever the clock of the driver's host says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.domain import Decided, Happened, PoolNode
from bftd.core.model.messages import sentence
from tests.bftd.builders import Core, lease, of, registration
from tests.support.messages import wording

OUT = PoolNode("n1", "ALLOCATED", False, "is needed by job 9 in 3 s", wanted=True)


def working() -> Core:
    """A trainer that works on n1, as Slurm shows."""
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    return core


def measured(core: Core) -> list[float]:
    """The durations of the give-backs so far."""
    return [item.data["duration_s"] for item in of(core.actions, Happened, kind="give_back")]


@pytest.mark.parametrize("skew_s", [-3600.0, -10.0, -2.1, 2.0, 10.0, 3600.0])
def test_regression_a_skewed_clock_dropped_slow_give_backs_or_made_them_short(skew_s: float) -> None:
    core = working()
    core.pool(out={"n1": OUT})
    core.pool(out={"n1": OUT})
    core.time_s += 0.9
    (back,) = core.leases("1", live=False)
    core.report("1", lease(back.id, "ended", at_s=core.time_s + skew_s))
    assert measured(core) == [pytest.approx(1.9)]


def test_what_slurm_asked_for_is_measured_by_the_drivers_clock_alone() -> None:
    core = working()
    (item,) = core.leases("1")
    leaving, ended = (
        lease(item.id, "leaving", at_s=core.time_s + 77.0),
        lease(item.id, "ended", at_s=core.time_s + 77.125),
    )
    core.report("1", leaving, ended, after_s=0.5)
    assert measured(core) == [0.125]


def test_regression_of_nodes_that_slurm_took_before_a_poll_saw_it_no_decision_told() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3))
    core.pool("n1", "n2", "n3")
    core.place_all()
    core.pool("n1", "n2", "n3")
    first, second, _ = core.leases("1")
    told = [lease(each.id, state, reason="Slurm took it") for state in ("leaving", "ended") for each in (first, second)]
    core.report("1", *told)
    said = [item.decision for item in of(core.actions, Decided) if item.decision.kind == "gave_back"]
    assert [sentence(each) for each in said] == [
        "train-1 " + wording("core.sentences.gives_back", nodes="n[1-2]", left="1 node left", why="Slurm took it")
    ]
    core.pool("n3", out={"n1": OUT})
    assert len([item for item in of(core.actions, Decided) if item.decision.kind == "gave_back"]) == 1, "once is enough"


def test_a_pilot_cannot_have_ended_before_slurm_last_showed_it() -> None:
    core = working()
    (item,) = core.leases("1")
    leaving, ended = lease(item.id, "leaving", at_s=core.time_s), lease(item.id, "ended", at_s=core.time_s + 0.5)
    core.report("1", leaving)
    core.pool(out={"n1": OUT}, after_s=3.0)
    core.report("1", ended, after_s=0.25)
    assert measured(core) == [pytest.approx(3.25)]


@settings(deadline=None)
@given(
    leave_s=st.floats(0.0, 0.9),
    take_s=st.floats(0.001, 5.0),
    skew_s=st.floats(-1e6, -0.001) | st.floats(0.001, 1e6),
    together=st.booleans(),
)
def test_when_slurm_asks_a_pilot_to_leave_a_skewed_clock_never_makes_it_look_faster(
    leave_s: float, take_s: float, skew_s: float, together: bool
) -> None:
    core = working()
    (item,) = core.leases("1")
    asked_s = core.time_s + leave_s
    ended_s = asked_s + take_s
    leaving = lease(item.id, "leaving", at_s=asked_s + skew_s)
    ended = lease(item.id, "ended", at_s=ended_s + skew_s)
    if together:
        core.time_s = ended_s
        core.report("1", leaving, ended)
    else:
        core.time_s = asked_s
        core.report("1", leaving)
        core.time_s = ended_s
        core.report("1", ended)
    (found,) = measured(core)
    assert found >= take_s * (1 - 1e-6) - 1e-6


@pytest.mark.parametrize(("left_s", "ended_s"), [(1.0, 2.0), (1.0, 2e9), (2e9, 1.0)])
def test_what_a_driver_says_about_long_ago_is_no_give_back_of_years(left_s: float, ended_s: float) -> None:
    core = working()
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "leaving", at_s=left_s), lease(item.id, "ended", at_s=ended_s), after_s=0.5)
    (found,) = measured(core)
    assert 0.5 <= found <= core.time_s - item.granted_s
