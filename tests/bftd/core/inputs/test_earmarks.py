"""Earmarks in the core: leaving at a step's end where there is time, else at once, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bftd.core.inputs import clock_shift
from bftd.core.model import timing
from bftd.core.model.domain import CancelPilot, Decided, Earmark, EarmarkOver, Happened, Settings
from bftd.core.model.earmark_usage import EarmarkUsage
from bftd.core.model.events import ClockSet
from tests.bftd.builders import Core, lease, of, registration, revoked
from tests.support.messages import wording

NAMES = ("n1", "n2", "n3", "n4")
# From an earmark's due time back to the deadline that pilots get.
AHEAD_S = timing.LEAVE_AHEAD_S + Settings().slurm.poll_s


def working(settings: Settings | None = None, **fields: Any) -> Core:
    """A trainer that works on n1 to n4, as Slurm shows."""
    core = Core(settings)
    core.arrive(registration("1", nodes_max=4, **fields))
    core.pool(*NAMES)
    core.place_all()
    core.pool(*NAMES)
    return core


def earmark(core: Core, *nodes: str, due_s: float | None = None, job: str = "4711", **fields: Any) -> Earmark:
    """An earmark that is made at the next snapshot; `due_s` from then on."""
    since_s = core.time_s + 1.0
    return Earmark(job, nodes, since_s, nodes, None if due_s is None else since_s + due_s, **fields)


def left_to(core: Core) -> list[str]:
    """The nodes that are asked back, those at once with a mark."""
    leases = sorted(core.leases("1", live=False), key=lambda item: item.node)
    return [item.node + ("!" if item.vacate else "") for item in leases]


def said(core: Core) -> list[str]:
    return [action.text for action in of(core.actions, Decided) if "4711" in action.text]


def test_where_nothing_is_known_of_the_next_cycle_nodes_are_left_at_once() -> None:
    core = working()
    core.pool("n1", "n2", earmarks=[earmark(core, "n3", "n4")])
    assert left_to(core) == ["n3!", "n4!"]
    assert said(core) == [
        "train-1 " + wording("core.sentences.left", nodes="n[3-4]", to="job 4711", left="2 nodes left")
    ]
    assert {item.reason for item in core.leases("1", live=False)} == {
        "n3 is left to " + wording("pool.judgement.job_that_can_start", job=4711),
        "n4 is left to " + wording("pool.judgement.job_that_can_start", job=4711),
    }


def test_where_there_is_time_nodes_are_left_at_a_steps_end_and_nothing_is_cancelled_before() -> None:
    core = working()
    kept = earmark(core, "n3", due_s=100.0)
    core.pool("n1", "n2", "n4", earmarks=[kept])
    assert left_to(core) == ["n3"]
    due_s = core.time_s + 100.0
    (item,) = core.leases("1", live=False)
    assert item.leave_by_s == due_s - AHEAD_S
    while core.time_s + 1.0 < due_s - AHEAD_S:
        core.pool("n1", "n2", "n4", earmarks=[kept])
        assert left_to(core) == ["n3"]
    assert not of(core.actions, CancelPilot)
    core.pool("n1", "n2", "n4", earmarks=[kept])
    assert left_to(core) == ["n3!"]
    assert core.time_s <= due_s - timing.LEAVE_AHEAD_S
    core.pool("n1", "n2", "n4", earmarks=[kept])
    core.pool("n1", "n2", "n4", earmarks=[kept])
    assert [action.job_id for action in of(core.actions, CancelPilot)] == [item.job_id]
    assert core.time_s <= due_s, "its pilot is gone when the cycle comes"


def test_the_deadline_is_told_once_by_the_clock_on_the_wall() -> None:
    core = working(replace(Settings(), zone=((float("-inf"), 3600.0),)))
    kept = earmark(core, "n3", "n4", due_s=40.0)
    for _ in range(3):
        core.pool("n1", "n2", earmarks=[kept])
    # 1000 s and 3 snapshots after midnight, an hour east, and 40 s less what is kept in hand
    assert said(core) == [
        "train-1 " + wording("core.sentences.leaves", nodes="n[3-4]", by="01:17:20", to="job 4711", left="2 nodes left")
    ]
    assert (
        core.leases("1", live=False)[0].reason
        == "n3 is left to " + wording("pool.judgement.job_that_can_start", job=4711) + ", by 01:17:20"
    )
    assert len(revoked(core.actions)) == 2


@pytest.mark.parametrize("due_s", [AHEAD_S, AHEAD_S + timing.LEAVE_LEAST_S, -5.0])
def test_a_cycle_that_is_nearly_there_leaves_no_time(due_s: float) -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=due_s)])
    assert left_to(core) == ["n4!"]


def test_a_deadline_is_never_put_off_but_may_come_earlier() -> None:
    core = working()
    kept = earmark(core, "n4", due_s=30.0)
    core.pool("n1", "n2", "n3", earmarks=[kept])
    (first,) = core.leases("1", live=False)
    core.pool("n1", "n2", "n3", earmarks=[replace(kept, due_s=core.time_s + 60.0)])
    assert [item.leave_by_s for item in core.leases("1", live=False)] == [first.leave_by_s]
    core.pool("n1", "n2", "n3", earmarks=[replace(kept, due_s=core.time_s + 11.0)])
    assert [item.leave_by_s for item in core.leases("1", live=False)] == [core.time_s + 10.0 - AHEAD_S]
    assert left_to(core) == ["n4"]
    core.pool("n1", "n2", "n3", earmarks=[replace(kept, due_s=None)])
    assert left_to(core) == ["n4!"], "the job is first in line by now"


def test_a_node_that_slurm_plans_to_use_before_is_left_as_soon_as_it_would_be_without_an_earmark() -> None:
    core = working()
    ahead_s = core.state.settings.pool.vacate_ahead_s
    kept = earmark(core, "n3", "n4", due_s=100.0)
    core.pool("n1", "n2", earmarks=[kept], windows={"n3": ahead_s, "n4": ahead_s + 10.0})
    assert left_to(core) == ["n3!", "n4"]
    core.pool("n1", "n2", earmarks=[kept], windows={"n4": ahead_s})
    assert left_to(core) == ["n3!", "n4!"]


def test_a_node_that_the_job_gets_before_its_deadline_is_left_at_once() -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=100.0)])
    beside = replace(core.state.pool.nodes["n4"], why="has job 4711 on it beside the pilot")
    core.pool("n1", "n2", "n3", out={"n4": beside})
    assert left_to(core) == ["n4!"]


def test_a_pilot_that_slurm_asks_to_leave_before_its_deadline_is_a_give_back_as_any_other() -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=100.0)])
    (item,) = core.leases("1", live=False)
    core.report("1", lease(item.id, "leaving"), after_s=0.5)
    (item,) = core.leases("1", live=False)
    assert (item.vacate, item.phase, item.asked_back_s) == (True, "leaving", core.time_s)
    assert core.state.backoff["n4"].until_s == core.time_s + timing.PREEMPTED_REST_S, (
        "it rests until the job may have started"
    )
    core.report("1", lease(item.id, "ended", at_s=core.time_s + 0.25), after_s=0.25)
    assert [told.data["duration_s"] for told in of(core.actions, Happened, kind="give_back")] == [0.25]


def test_leaving_in_time_is_no_give_back_that_slurm_waited_for() -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=100.0)])
    (item,) = core.leases("1", live=False)
    core.report("1", lease(item.id, "ended"), after_s=5.0)
    assert not of(core.actions, Happened, kind="give_back")
    assert not core.state.backoff


def test_an_earmark_that_is_over_leaves_the_pilot_its_time() -> None:
    core = working()
    kept = earmark(core, "n4", due_s=20.0)
    core.pool("n1", "n2", "n3", earmarks=[kept])
    for _ in range(30):
        core.pool(*NAMES)
    assert left_to(core) == ["n4"]


def test_a_lease_that_the_plan_had_taken_back_has_until_the_deadline_too() -> None:
    core = working(curve=((1, 1.0), (2, 2.0), (4, 2.1)), down_cost_s=0.0)
    core.arrive(registration("2", nodes_min=2, nodes_max=2, curve=((1, 1.0), (2, 2.0)), warm_up_s=0.0))
    core.pool(*NAMES)
    going = left_to(core)
    assert going, "the second trainer gets some of the first one's nodes"
    rest = [name for name in NAMES if name not in going]
    core.pool(*rest, earmarks=[earmark(core, *going, due_s=40.0)])
    assert left_to(core) == going
    assert not said(core), "the plan has told of it already"
    core.pool(*rest, earmarks=[replace(earmark(core, *going), due_s=None)], after_s=40.0)
    assert left_to(core) == [f"{name}!" for name in going]


def test_the_deadline_holds_while_slurm_does_not_answer_and_when_the_clock_is_set() -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=30.0)])
    core.time_s += 3600.0
    core.apply(ClockSet(core.time_s, 3600.0))
    core.tick(20.0)
    assert left_to(core) == ["n4"]
    core.tick(10.0)
    assert left_to(core) == ["n4!"]


def test_regression_a_deadline_kept_pilots_beyond_the_hours_of_harvesting() -> None:
    core = working(Settings().changed(harvest_at="Thu 00:00-00:20"))  # until 1200 s
    while core.time_s < 1100.0:
        core.pool(*NAMES)
    kept = earmark(core, "n4", due_s=500.0)  # bf_interval is minutes here
    while core.time_s < 1199.0:
        core.pool("n1", "n2", "n3", earmarks=[kept])
        assert "n4" in left_to(core)
    core.pool("n1", "n2", "n3", earmarks=[kept])
    assert "n4!" in left_to(core)


def test_a_restart_on_a_clock_that_was_set_back_keeps_no_pilot_for_longer() -> None:
    core = working()
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4", due_s=30.0)])
    found = clock_shift.restored(core.state, core.time_s - 7200.0, 300.0)
    ahead_s = [item.leave_by_s - found.time_s for item in found.leases.values() if item.leave_by_s is not None]
    assert ahead_s == [30.0 - AHEAD_S]


def test_earmarks_and_their_ends_are_events_and_are_counted() -> None:
    core = working()
    first, second = earmark(core, "n3", "n4", due_s=30.0), earmark(core, "n1", job="4712")
    core.pool("n2", earmarks=[first, second])
    core.pool("n2", earmarks=[first, second])
    assert [dict(item.data) for item in of(core.actions, Happened, kind="earmark")] == [
        {"job": "4711", "nodes": "n[3-4]", "leaving": "n[3-4]", "due_s": first.due_s},
        {"job": "4712", "nodes": "n1", "leaving": "n1", "due_s": None},
    ]
    assert core.state.earmark_usage == EarmarkUsage(made=2, open={"4711": 0.0, "4712": 0.0}), "pilots are still there"
    for item in core.leases("1", live=False):
        core.pilots.pop(item.job_id or "")
        core.report("1", lease(item.id, "ended"))
    core.pool("n2", earmarks=[first, second], after_s=2.0)
    assert core.state.earmark_usage.open == {"4711": 4.0, "4712": 2.0}
    core.pool("n1", "n2", over=[EarmarkOver(first, "started"), EarmarkOver(second, "no longer fits")], after_s=2.0)
    assert core.state.earmark_usage == EarmarkUsage(2, 1, 1, 12.0, 4.0)
    assert [dict(item.data) for item in of(core.actions, Happened, kind="earmark_over")] == [
        {"job": "4711", "end": "started", "duration_s": 5.0, "kept_node_seconds": 8.0},
        {"job": "4712", "end": "no longer fits", "duration_s": 5.0, "kept_node_seconds": 4.0},
    ]


def test_a_job_that_gets_an_earmark_anew_has_two() -> None:
    core = working()
    kept = earmark(core, "n4")
    core.pool("n1", "n2", "n3", earmarks=[kept])
    core.pool(*NAMES, over=[EarmarkOver(kept, "backed off")])
    core.pool("n1", "n2", "n3", earmarks=[earmark(core, "n4")])
    again = earmark(core, "n3")
    core.pool("n1", "n2", "n4", earmarks=[again], over=[EarmarkOver(kept, "gone")])
    assert (core.state.earmark_usage.made, core.state.earmark_usage.wasted) == (3, 2)
