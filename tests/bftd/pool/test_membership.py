"""The node pool, on hand-made snapshots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.core.model.domain import Earmark, PoolView
from bftd.core.model.events import PoolObserved
from bftd.pool.claims import COUNTED_ON_S
from bftd.pool.harvest import Harvest
from bftd.pool.idle_filter import IdleWatch
from bftd.pool.membership import SUSPECT_MOST_S, UNHEARD_KEPT_S, PoolMemory, observe
from bftd.pool.synthetic import idle_nodes
from slurm_plugin.read.types import Job, JobRequest, Node, Reservation, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, Core, Pool, granted, job, members, node, pilot, registration
from tests.support.messages import says, wording

# Of more nodes than there are: no earmark can be made for such a job.
LARGE = 9


def test_an_idle_node_is_offered_at_its_second_idle_poll() -> None:
    pool = Pool()
    assert members(pool.see([node("n1")])) == set()
    assert members(pool.see([node("n1")])) == {"n1"}


def test_a_node_between_two_jobs_is_not_offered_until_it_stayed_idle_for_two_polls() -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1")])
    assert members(view) == {"n1"}
    assert members(pool.see([node("n1", "ALLOCATED")], [job("1", "RUNNING", nodes=("n1",))])) == set()
    assert members(pool.see([node("n1", "IDLE", "COMPLETING")])) == set()
    view = pool.see([node("n1")])
    assert members(view) == set()
    assert view.nodes["n1"].why == wording("pool.judgement.idle_for_now")
    assert members(pool.see([node("n1")])) == {"n1"}


def test_a_node_says_after_how_many_polls_it_may_be_lent() -> None:
    pool = Pool(PoolConfig(debounce_polls=3))
    assert pool.see([node("n1")]).nodes["n1"].why == wording("pool.judgement.idle_for_polls", polls=2)
    assert pool.see([node("n1")]).nodes["n1"].why == wording("pool.judgement.idle_for_now")
    assert members(pool.see([node("n1")])) == {"n1"}


@pytest.mark.parametrize(
    ("state", "flag", "why"),
    [
        ("IDLE", "DRAIN", "is draining"),
        ("IDLE", "RESERVED", "is reserved"),
        ("IDLE", "MAINT", "is in maintenance"),
        ("IDLE", "POWERED_DOWN", wording("pool.fitness.powered_down")),
        ("IDLE", "NOT_RESPONDING", "does not respond"),
        ("IDLE", "COMPLETING", wording("pool.fitness.between_jobs")),
        ("DOWN", "CLOUD", "is down"),
        ("IDLE", "EXTERNAL", "has the flag EXTERNAL"),  # since 25.11: a node without slurmd
        ("IDLE", "BLOCKED", "has the flag BLOCKED"),  # since 24.11: another has its block of nodes
        ("IDLE", "NEVER_HEARD_OF", "has the flag NEVER_HEARD_OF"),
        ("MIXED", "CLOUD", "runs a job"),
    ],
)
def test_a_node_that_is_not_plainly_idle_is_out_and_says_why(state: str, flag: str, why: str) -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1", state, flag), node("n2", "IDLE", "CLOUD")])
    assert members(view) == {"n2"}
    assert view.nodes["n1"].why == why


def test_a_node_planned_sooner_than_the_least_window_is_out_and_a_later_one_has_its_window() -> None:
    pool = Pool()
    for _ in range(3):
        now = pool.time_s + 1
        jobs = [
            job("8", sched_nodes=("n1", "n2"), start_s=now + 600, node_count=LARGE),
            job("9", sched_nodes=("n2",), start_s=now + 19, node_count=LARGE),
        ]
        view = pool.see([node("n1", "IDLE", "PLANNED"), node("n2", "IDLE", "PLANNED"), node("n3")], jobs)
    assert members(view) == {"n1", "n3"}
    assert view.nodes["n1"].window_s == 600
    assert view.nodes["n2"].why == wording("pool.judgement.planned", by="job 9", window_s=19)
    assert view.nodes["n3"].window_s is None


def test_a_planned_node_without_a_job_that_names_it_is_out() -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1", "IDLE", "PLANNED")])
    assert members(view) == set()


def test_regression_a_reservation_to_come_made_a_planned_node_idle() -> None:
    pool = Pool()
    for _ in range(3):
        maintenance = Reservation("maint", ("n1",), pool.time_s + 5 * 86400, pool.time_s + 6 * 86400, frozenset())
        view = pool.see([node("n1", "IDLE", "PLANNED")], reservations=[maintenance])
    assert members(view) == set()
    assert view.nodes["n1"].why == wording("pool.judgement.planned_some_time")


@pytest.mark.parametrize(("job_in_s", "reserved_in_s"), [(30, 50), (30, 25)])
def test_regression_a_job_planned_sooner_hid_a_reservation_for_which_slurm_refuses_every_pilot(
    job_in_s: float, reserved_in_s: float
) -> None:
    pool = Pool()
    for _ in range(3):
        now = pool.time_s + 1
        soon = Reservation("course", ("n1",), now + reserved_in_s, now + 900, frozenset())
        view = pool.see([node("n1")], [job("9", sched_nodes=("n1",), start_s=now + job_in_s)], reservations=[soon])
    assert members(view) == set()
    assert says(view.nodes["n1"].why, "pool.judgement.planned", by="reservation course")
    assert view.nodes["n1"].window_s == min(job_in_s, reserved_in_s)


def test_regression_a_reservation_sooner_than_a_job_kept_its_node_from_being_left_to_the_job() -> None:
    pool = Pool()
    now = pool.time_s + 1
    soon = Reservation("course", ("n1",), now + 3, now + 4, frozenset())
    waits = job("9", sched_nodes=("n1",), start_s=now + 5)
    pool.see([node("n1", "ALLOCATED")], [pilot("71", "n1"), waits], {"n1": "71"}, [soon])
    view = pool.see([node("n1")], [waits])
    assert view.nodes["n1"].why == "is left to " + wording("pool.judgement.job_that_waits", planned=9)


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED", "RUNNING", "COMPLETING", "SIGNALING", "NEVER_HEARD_OF"])
@pytest.mark.parametrize("partition", ["batch", "bft-driver", "elastic"])
def test_regression_a_suspended_jobs_node_was_lent_because_slurm_shows_it_idle(state: str, partition: str) -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1"), node("n2")], [job("9", state, partition=(partition,), nodes=("n1",))])
    assert members(view) == {"n2"}
    assert "job 9" in view.nodes["n1"].why
    assert view.nodes["n1"].wanted
    views = [pool.see([node("n1"), node("n2")]) for _ in range(2)]
    assert [members(view) for view in views] == [{"n2"}, {"n1", "n2"}], "the idle polls count from the job's end"


def test_in_shadow_mode_a_suspended_jobs_node_is_no_idle_one_either() -> None:
    snapshot = Snapshot(1.0, {"n1": node("n1"), "n2": node("n2")}, (job("9", "SUSPENDED", nodes=("n1",)),), ())
    assert idle_nodes(snapshot, ("elastic",)) == {"n2"}


def test_a_pilot_that_came_to_a_suspended_jobs_node_leaves_it() -> None:
    jobs = [pilot("71", "n1"), job("9", "SUSPENDED", nodes=("n1",))]
    view = Pool().see([node("n1", "ALLOCATED")], jobs, {"n1": "71"})
    assert view.nodes["n1"].why == wording(
        "pool.judgement.taken_beside_pilot", taken=wording("pool.judgement.has_job", job_id=9)
    )
    assert view.nodes["n1"].wanted
    assert members(view) == set()


def test_our_own_suspended_pilot_has_its_node_still() -> None:
    jobs = [job("71", "SUSPENDED", partition=("elastic",), nodes=("n1",))]
    view = Pool().see([node("n1")], jobs, {"n1": "71"})
    assert (view.nodes["n1"].why, members(view)) == (wording("pool.judgement.has_job", job_id=71), set())


def test_a_job_that_completes_elsewhere_leaves_the_nodes_that_it_has_left_to_others() -> None:
    pool = Pool()
    for _ in range(2):
        view = pool.see([node("n1", "IDLE", "COMPLETING"), node("n2")], [job("9", "COMPLETING", nodes=("n1",))])
    assert members(view) == {"n2"}


def test_a_reservation_that_starts_soon_bounds_the_window() -> None:
    pool = Pool()
    nodes = [node("n1"), node("n2"), node("n3")]
    for _ in range(3):
        now = pool.time_s + 1
        coming = [
            Reservation("upgrade", ("n1",), now + 300, now + 900, frozenset()),
            Reservation("course", ("n2",), now + 10, now + 900, frozenset()),
            Reservation("past", ("n3",), now - 900, now - 10, frozenset()),
        ]
        view = pool.see(nodes, reservations=coming)
    assert members(view) == {"n1", "n3"}
    assert view.nodes["n1"].window_s == 300


def test_a_node_with_our_pilot_stays_in_the_pool_and_one_with_a_foreign_pilot_does_not() -> None:
    pool = Pool()
    nodes = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED"), node("n3", "ALLOCATED")]
    jobs = [pilot("71", "n1"), pilot("72", "n2"), pilot("73", "n3")]
    view = pool.see(nodes, jobs, leased={"n1": "71", "n2": "99"})
    assert members(view) == {"n1"}
    assert view.nodes["n1"].pilot == "71"
    assert view.nodes["n2"].pilot is None


def test_a_pilot_that_is_placed_but_not_yet_reported_keeps_its_node_in_the_pool() -> None:
    pool = Pool()
    pool.see([node("n1")])
    assert members(pool.see([node("n1")])) == {"n1"}
    # the jobs were read before the nodes: the node is busy and nobody is seen on it
    assert members(pool.see([node("n1", "ALLOCATED")], leased={"n1": None})) == {"n1"}
    assert members(pool.see([node("n1", "ALLOCATED")], [pilot("71", "n1")], leased={"n1": None})) == {"n1"}
    assert (
        members(pool.see([node("n1", "ALLOCATED")], [job("5", "RUNNING", nodes=("n1",))], leased={"n1": None})) == set()
    )


def test_a_node_that_our_pilot_has_just_left_is_offered_again_at_once() -> None:
    pool = Pool()
    assert members(pool.see([node("n1", "ALLOCATED")], [pilot("71", "n1")], leased={"n1": "71"})) == {"n1"}
    assert members(pool.see([node("n1", "IDLE", "COMPLETING")])) == set()
    assert members(pool.see([node("n1")])) == {"n1"}


def test_a_pilot_leaves_when_a_regular_job_is_planned_on_its_node_within_the_vacate_time() -> None:
    pool = Pool()
    nodes, jobs, leased = [node("n1", "ALLOCATED", "PLANNED")], [pilot("71", "n1")], {"n1": "71"}
    waits = job("9", sched_nodes=("n1",), start_s=pool.time_s + 7, node_count=LARGE)
    view = pool.see(nodes, [*jobs, waits], leased)
    assert members(view) == {"n1"}
    view = pool.see(nodes, [*jobs, replace(waits, start_s=pool.time_s + 6)], leased)
    assert members(view) == set()
    assert view.nodes["n1"].wanted
    assert "job 9" in view.nodes["n1"].why


def test_a_vacated_node_is_not_offered_again_before_its_job_has_started_or_gone() -> None:
    pool = Pool()
    waiting = job("9", sched_nodes=("n1",), start_s=pool.time_s)
    pool.see([node("n1", "ALLOCATED")], [pilot("71", "n1"), waiting], {"n1": "71"})
    for _ in range(20):  # the plan of the job moves elsewhere, and the node looks free
        view = pool.see([node("n1")], [job("9", sched_nodes=("n2",), start_s=pool.time_s + 500)])
        assert members(view) == set()
        assert view.nodes["n1"].why == "is left to " + wording("pool.judgement.job_that_waits", planned=9)
    assert members(pool.see([node("n1")])) == {"n1"}


def test_a_job_that_is_locked_out_with_a_start_in_the_past_gets_its_nodes_vacated() -> None:
    pool = Pool()
    locked_out = job("9", sched_nodes=("n1",), start_s=pool.time_s - 12)
    view = pool.see([node("n1", "ALLOCATED"), node("n2")], [pilot("71", "n1"), locked_out], {"n1": "71"})
    assert view.nodes["n1"].wanted


def test_a_held_job_with_an_old_plan_claims_nothing() -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1")], [job("9", sched_nodes=("n1",), start_s=pool.time_s, reason="JobHeldUser")])
    assert members(view) == {"n1"}
    assert view.hold is None


@pytest.mark.parametrize("reason", ["Resources", "Dependency", "ReqNodeNotAvail, UnavailableNodes:n3", "NeverHeardOf"])
def test_a_job_without_a_plan_stops_no_growth_on_nodes_that_nobody_needs(reason: str) -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1")], [job("9", reason=reason, node_count=2)])
    assert view.hold is None
    assert members(view) == {"n1"}


@pytest.mark.parametrize(("begun_s", "looked_s"), [(None, 1000.0), (998.0, 998.0), (4600.0, 1000.0)])
def test_what_the_pool_has_looked_at_is_as_old_as_the_beginning_of_its_snapshot(
    begun_s: float | None, looked_s: float
) -> None:
    snapshot = Snapshot(1000.0, {"n1": node("n1")}, (), (), begun_s=begun_s)
    _, view = observe(PoolMemory(), snapshot, PoolConfig(), Harvest.of(PARTITION), {}, {})
    assert view.looked_s == looked_s, "a clock that was set back meanwhile makes it no younger than its end"


def test_a_quarantined_node_is_out_until_its_time_is_over() -> None:
    pool = Pool()
    for _ in range(3):
        view = pool.see([node("n1")], quarantined={"n1": 1005.0})
    assert members(view) == set()
    assert "quarantine" in view.nodes["n1"].why
    assert members(pool.see([node("n1")], quarantined={"n1": 1005.0}, after_s=2.0)) == {"n1"}


def test_nodes_of_other_partitions_are_not_seen() -> None:
    assert set(Pool().see([node("n1"), node("svc1", partitions=("bft-driver",))]).nodes) == {"n1"}


def test_the_version_changes_with_the_members_and_with_nothing_else() -> None:
    pool = Pool()
    versions = [pool.see([node("n1"), node("n2")]).version for _ in range(4)]
    assert versions == [0, 1, 1, 1]
    waiting = [job("9", sched_nodes=("n2",), start_s=pool.time_s + 500, node_count=LARGE)]
    assert pool.see([node("n1"), node("n2", "IDLE", "PLANNED")], waiting).version == 1
    assert pool.see([node("n1"), node("n2", "ALLOCATED")]).version == 2


STATES = st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN"])
FLAGS = st.frozensets(st.sampled_from(["PLANNED", "DRAIN", "COMPLETING", "RESERVED", "CLOUD", "NEW"]), max_size=2)


@given(st.lists(st.tuples(STATES, FLAGS, st.booleans(), st.none() | st.floats(-50, 500)), min_size=1, max_size=12))
def test_S1b_a_node_without_our_pilot_is_offered_only_when_idle_for_two_polls_and_not_planned_soon(history) -> None:
    pool, idle_polls, was_ours = Pool(), 0, False
    for state, flags, ours, starts_in_s in history:
        jobs = [pilot("71", "n1")] if ours else []
        if starts_in_s is not None:
            jobs.append(job("9", sched_nodes=("n1",), start_s=pool.time_s + 1 + starts_in_s))
        view = pool.see([node("n1", state, *flags)], jobs, {"n1": "71"} if ours else {})
        if ours:
            idle_polls = 2  # our own pilot was there: no other job has just ended
        elif "COMPLETING" in flags:
            idle_polls = idle_polls if was_ours else 0
        else:
            idle_polls = idle_polls + 1 if state == "IDLE" else 0
        was_ours = ours or (was_ours and "COMPLETING" in flags)
        seen = view.nodes["n1"]
        if seen.in_pool:
            assert not flags & {"DRAIN", "RESERVED", "NEW"}
            assert state != "DOWN"
            if ours:
                assert starts_in_s is None or starts_in_s > pool.config.vacate_ahead_s
            else:
                assert state == "IDLE"
                assert starts_in_s is None or starts_in_s >= pool.config.min_window_s
                assert idle_polls >= 2
        assert seen.why


def test_regression_a_node_reserved_in_less_than_a_minute_was_offered_though_slurm_refuses_every_pilot_there() -> None:
    pool = Pool()
    for _ in range(3):
        start_s = pool.time_s + 50.0
        view = pool.see([node("n1")], reservations=(Reservation("r", ("n1",), start_s, start_s + 60.0, frozenset()),))
        assert members(view) == set()
    assert says(view.nodes["n1"].why, "pool.judgement.planned", by="reservation r")


BUSY = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED"), node("n3")]
LEASED: dict[str, str | None] = {"n1": "71", "n2": "72"}
PILOTS = [pilot("71", "n1"), pilot("72", "n2")]


def test_pilots_leave_the_nodes_that_a_job_would_have_without_them() -> None:
    pool = Pool()
    for _ in range(2):
        before = pool.see(BUSY, PILOTS, LEASED)
    assert members(before) == {"n1", "n2", "n3"}
    view = pool.see(BUSY, [*PILOTS, job("9", node_count=2)], LEASED)
    assert members(view) == {"n3"}
    assert [view.nodes[name].why for name in ("n1", "n2")] == [
        "is left to " + wording("pool.judgement.job_that_can_start", job=9)
    ] * 2
    assert view.nodes["n1"].wanted
    assert view.earmarks == {"9": Earmark("9", ("n1", "n2"), pool.time_s, leaving=("n1", "n2"))}
    assert view.version == before.version + 1


def test_nodes_stay_kept_until_their_job_has_started_and_then_count_as_its_own() -> None:
    pool = Pool()
    waits = job("9", node_count=2)
    pool.see(BUSY, [*PILOTS, waits], LEASED)
    nodes = [node("n1"), *BUSY[1:]]
    for _ in range(5):
        view = pool.see(nodes, [PILOTS[1], waits], {"n2": "72"})
        assert members(view) == {"n3"}
        assert view.earmarks["9"].nodes == ("n1", "n2"), "though n1 and n3 would do"
    runs = job("9", "RUNNING", nodes=("n1", "n2"), start_s=pool.time_s)
    view = pool.see([node("n1", "ALLOCATED"), node("n2", "ALLOCATED"), BUSY[2]], [runs])
    assert view.earmarks == {}
    assert [over.end for over in view.earmarks_over] == ["started"]
    assert view.nodes["n1"].why == "runs a job"


def test_where_only_a_cycle_that_is_far_away_starts_the_job_its_pilots_train_on_until_then() -> None:
    nodes = [*BUSY[:2], node("n3", "ALLOCATED")]
    runs = job("7", "RUNNING", nodes=("n3",), start_s=900.0, time_limit_s=900.0)
    ahead = job("8", node_count=3, priority=9, time_limit_s=600.0)
    waits = job("9", node_count=1, priority=1, time_limit_s=60.0)
    memory, scheduler = PoolMemory(), Scheduler(True, cycle_s=0.1, cycled_s=995.0)
    seen = {}
    for time_s in (1000.0, 1014.0, 1016.0, 1024.0):
        jobs = (*PILOTS, runs, ahead, waits)
        snapshot = Snapshot(time_s, {one.name: one for one in nodes}, jobs, (), scheduler=scheduler)
        memory, view = observe(memory, snapshot, PoolConfig(), Harvest.of(PARTITION), LEASED, {})
        assert view.earmarks == {"9": Earmark("9", ("n1",), 1000.0, leaving=("n1",), due_s=1025.0)}
        seen[time_s] = (view.nodes["n1"].in_pool, view.nodes["n1"].wanted, view.nodes["n1"].why)
    trains_on = (True, False, wording("pool.judgement.until_next_cycle", job=9))
    goes = (False, True, "is left to " + wording("pool.judgement.job_that_can_start", job=9))
    assert seen == {1000.0: trains_on, 1014.0: trains_on, 1016.0: goes, 1024.0: goes}
    gone = Snapshot(
        1005.0, {**snapshot.nodes, "n1": node("n1")}, (PILOTS[1], runs, ahead, waits), (), scheduler=scheduler
    )
    _, view = observe(PoolMemory(), gone, PoolConfig(debounce_polls=1), Harvest.of(PARTITION), {"n2": "72"}, {})
    assert "n1" not in members(view), "a node without a pilot is lent to nobody in between"


def test_nodes_that_a_job_no_longer_fits_on_are_lent_again_at_once() -> None:
    pool = Pool()
    for _ in range(3):
        pool.see(BUSY, [*PILOTS, job("9", node_count=3)], LEASED)
    other = job("8", "RUNNING", nodes=("n1",), start_s=pool.time_s, time_limit_s=7200.0)
    view = pool.see(BUSY, [PILOTS[1], other, job("9", node_count=3)], {"n2": "72"})
    assert members(view) == {"n2", "n3"}
    assert [(over.earmark.job, over.end) for over in view.earmarks_over] == [("9", "no longer fits")]


@pytest.mark.parametrize("waits", [job("9"), job("9_3"), job("9_[1-4]"), job("9+0")])
def test_a_job_that_does_not_start_though_it_could_is_backed_off_and_its_nodes_are_lent_again(waits: Job) -> None:
    pool = Pool()
    pool.see([node("n1")], [waits])
    view = pool.see([node("n1")], [waits], after_s=96.0)  # nobody says how long cycles take
    assert [over.end for over in view.earmarks_over] == ["backed off"]
    for _ in range(3):
        view = pool.see([node("n1")], [waits])
        assert (view.earmarks, members(view)) == ({}, {"n1"})


def test_the_rest_of_an_array_keeps_its_nodes_as_its_tasks_start() -> None:
    pool = Pool()
    nodes = [node(f"n{index}") for index in range(1, 5)]
    view = pool.see(nodes, [job("9_[1-3]")])
    first, *rest = view.earmarks["9"].nodes
    runs = job("9_1", "RUNNING", nodes=(first,), start_s=pool.time_s)
    shown = [replace(one, state="ALLOCATED") if one.name == first else one for one in nodes]
    view = pool.see(shown, [runs, job("9_[2-3]")])
    assert view.earmarks["9"].nodes == tuple(rest)
    assert [over.end for over in view.earmarks_over] == ["started"]


def test_a_site_may_leave_the_earmarking_to_slurm() -> None:
    pool = Pool(PoolConfig(earmark=False))
    for _ in range(3):
        view = pool.see(BUSY, [*PILOTS, job("9", node_count=2)], LEASED)
    assert members(view) == {"n1", "n2", "n3"}
    assert view.earmarks == {}


def test_a_site_that_stops_earmarking_gets_its_nodes_back() -> None:
    pool = Pool()
    pool.see(BUSY, [*PILOTS, job("9")], LEASED)
    pool.config = PoolConfig(earmark=False)
    view = pool.see(BUSY, [*PILOTS, job("9")], LEASED)
    assert view.earmarks == {}
    assert [over.earmark.job for over in view.earmarks_over] == ["9"]


def test_a_fault_in_the_copy_of_slurms_planner_stops_no_poll_and_lends_no_node_that_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool()
    for _ in range(2):
        pool.see(BUSY, [*PILOTS, job("9")], LEASED)
    monkeypatch.setattr("bftd.pool.prediction.queue", lambda *_: 1 / 0)
    for _ in range(3):
        view = pool.see(BUSY, [*PILOTS, job("9"), job("10")], LEASED)
        assert view.earmarks.keys() == {"9"}
        assert members(view) == {"n1", "n2"}
        assert isinstance(pool.memory.earmarks.fault, ZeroDivisionError)


def test_idle_times_are_not_shortened_by_the_nodes_that_are_kept() -> None:
    watch = IdleWatch(PoolConfig(debounce_polls=1))
    snapshot = Snapshot(1000.0, {"n1": node("n1")}, (job("9"),), ())
    assert watch.see(snapshot, ["n1"]) == {"n1"}


def test_regression_a_trace_lost_all_its_idle_nodes_for_a_moment_at_each_restart_of_slurmctld() -> None:
    watch = IdleWatch(PoolConfig(debounce_polls=1))

    def seen(at_s: float, state: str, *flags: str, jobs: Sequence[Job] = ()) -> Collection[str]:
        nodes = {name: node(name, state, *flags) for name in ("n1", "n2")}
        return watch.see(Snapshot(at_s, nodes, tuple(jobs), ()), ["n1", "n2"])

    busy = job("1", "RUNNING", nodes=("n2",))
    assert seen(1000.0, "UNKNOWN") == set()
    for at_s in (1001.0, 1002.0):
        assert seen(at_s, "IDLE", jobs=[busy]) == {"n1"}
    assert seen(1003.0, "UNKNOWN", jobs=[busy]) == {"n1"}
    assert seen(1003.0 + UNHEARD_KEPT_S - 1.0, "IDLE", "NOT_RESPONDING") == {"n1"}
    assert seen(1003.0 + UNHEARD_KEPT_S, "IDLE", "NOT_RESPONDING") == set()
    assert seen(1200.0, "IDLE") == {"n1", "n2"}
    assert seen(1201.0, "UNKNOWN", jobs=[busy]) == {"n1"}
    assert seen(1202.0, "DOWN", "NOT_RESPONDING") == set()


WAITING = st.builds(
    job,
    st.sampled_from(["7", "8", "9_[1-4%2]", "9_3", "10+0", "10+1", "3_[1-2,4"]),
    partition=st.sampled_from([("batch",), ("batch", "elastic"), ("gone",), ()]),
    node_count=st.sampled_from([0, 1, 2, 3, 10**6]),
    time_limit_s=st.sampled_from([None, 0.0, 60.0, 1e9]),
    priority=st.sampled_from([0, 1, 2**32]),
    start_s=st.none() | st.floats(900.0, 3000.0),
    sched_nodes=st.sampled_from([(), ("n1",), ("n2", "elsewhere")]),
    request=st.builds(
        JobRequest,
        features=st.sampled_from(["", "gpu", "[a|b]", "a&(b", "!"]),
        required=st.sampled_from([(), ("n2",), ("elsewhere",)]),
        excluded=st.sampled_from([(), ("n1", "n3")]),
        contiguous=st.booleans(),
        exclusive=st.booleans(),
        least_s=st.none() | st.sampled_from([0.0, 60.0]),
    ),
)


@settings(deadline=None)
@given(st.lists(WAITING, max_size=5, unique_by=lambda one: one.id), st.integers(0, 3), st.floats(-50.0, 300.0))
def test_no_queue_breaks_a_poll_and_no_node_is_lent_that_is_kept_or_that_slurm_has_promised(
    waiting: list[Job], leases: int, in_s: float
) -> None:
    pool = Pool(PoolConfig(debounce_polls=1))
    nodes = [node(f"n{index}", "ALLOCATED" if index <= leases else "IDLE") for index in range(1, 4)]
    leased: dict[str, str | None] = {f"n{index}": f"7{index}" for index in range(1, leases + 1)}
    pilots = [pilot(str(id_), name) for name, id_ in leased.items()]
    promised = job("77", sched_nodes=("n3",), start_s=pool.time_s + 2 + in_s, node_count=LARGE)
    for _ in range(3):
        view = pool.see(nodes, [*pilots, *waiting, promised], leased)
        assert pool.memory.earmarks.fault is None
        kept = {name for earmark in view.earmarks.values() for name in earmark.nodes}
        assert len(kept) == sum(len(earmark.nodes) for earmark in view.earmarks.values()), "no node is kept twice"
        assert not kept & members(view)
        assert all(view.nodes[name].wanted for name in kept)
        if leases < 3 and in_s < pool.config.min_window_s - 3:
            assert "n3" not in members(view)


def lent(count: int) -> tuple[list[Node], list[Job], dict[str, str | None], Pool]:
    """So many nodes with our pilots, as Slurm shows them and as they are leased, and the pool that has seen them."""
    names = [f"n{number}" for number in range(1, count + 1)]
    pilots = [pilot(f"7{name[1:]}", name) for name in names]
    leased: dict[str, str | None] = {one.nodes[0]: one.id for one in pilots}
    nodes, pool = [node(name, "ALLOCATED") for name in names], Pool()
    assert members(pool.see(nodes, pilots, leased)) == leased.keys()
    return nodes, pilots, leased, pool


@pytest.mark.parametrize(("state", "flags"), [("UNKNOWN", ()), ("ALLOCATED", ("NOT_RESPONDING",))])
@pytest.mark.parametrize("count", [1, 40])
def test_regression_a_poll_after_a_restart_of_slurmctld_took_back_all_that_was_lent(
    state: str, flags: tuple[str, ...], count: int
) -> None:
    nodes, pilots, leased, pool = lent(count)
    view = pool.see([node(one.name, state, *flags) for one in nodes], pilots, leased)
    assert members(view) == leased.keys()
    assert all(view.nodes[name].unheard for name in leased)
    assert says(view.nodes["n1"].why, "pool.judgement.unheard", unheard_s=0)
    assert (view.hold is None) == (count == 1)
    view = pool.see(nodes, pilots, leased)
    assert (members(view), view.hold, view.nodes["n1"].why) == (set(leased), None, "runs a pilot")


def test_a_lent_node_of_which_slurm_hears_nothing_is_kept_for_a_while_though_the_clock_is_set_and_then_lost() -> None:
    nodes, pilots, leased, pool = lent(20)
    silent = [node("n1", "ALLOCATED", "NOT_RESPONDING"), *nodes[1:]]
    assert members(pool.see(silent, pilots, leased)) == leased.keys()
    assert members(pool.see(silent, pilots, leased, after_s=UNHEARD_KEPT_S - 1.0)) == leased.keys()
    pool.memory, pool.time_s = pool.memory.moved(5000.0), pool.time_s + 5000.0
    view = pool.see(silent, pilots, leased, after_s=0.5)
    assert (members(view), view.hold) == (set(leased), None)
    for _ in range(2):
        view = pool.see(silent, pilots, leased)
        assert members(view) == leased.keys() - {"n1"}
        assert (view.nodes["n1"].why, view.hold) == ("does not respond", None)


def test_a_node_of_which_slurm_hears_nothing_is_not_kept_without_a_pilot_that_runs_nor_where_it_is_down() -> None:
    nodes, pilots, leased, pool = lent(20)
    strange = [node("n1", "UNKNOWN"), node("n2", "DOWN", "NOT_RESPONDING"), *nodes[2:]]
    view = pool.see(strange, [one for one in pilots if one.nodes != ("n1",)], leased)
    assert members(view) == leased.keys() - {"n1", "n2"}
    assert (view.nodes["n1"].why, view.nodes["n2"].why) == ("is unknown", "is down")


def test_S9_what_befalls_more_than_a_tenth_of_the_lent_nodes_at_once_is_believed_after_a_while_and_nothing_grows() -> (
    None
):
    nodes, pilots, leased, pool = lent(20)
    drained = [node(f"n{number}", "ALLOCATED", "DRAIN") for number in (1, 2, 3)] + nodes[3:]
    for passed_s in (1.0, SUSPECT_MOST_S - 0.5):
        view = pool.see(drained, pilots, leased, after_s=passed_s)
        assert members(view) == leased.keys()
        assert says(view.nodes["n1"].why, "pool.judgement.for_now", why="is draining")
        assert view.hold == wording("pool.judgement.suspect", many=3, all=20, why="is draining")
    assert members(pool.see(drained, pilots, leased, after_s=0.5)) == leased.keys() - {"n1", "n2", "n3"}
    view = pool.see(drained, pilots, leased)
    assert (members(view), view.hold) == (set(leased) - {"n1", "n2", "n3"}, None)


def test_what_befalls_a_tenth_of_the_lent_nodes_or_a_single_one_is_believed_at_once() -> None:
    for count, out in ((20, 2), (2, 1), (1, 1)):
        nodes, pilots, leased, pool = lent(count)
        drained = [node(one.name, "ALLOCATED", "DRAIN") for one in nodes[:out]]
        view = pool.see(drained + nodes[out:], pilots, leased)
        assert (len(members(view)), view.hold) == (count - out, None)


def test_a_job_has_its_nodes_at_once_also_while_what_slurm_shows_of_many_nodes_is_not_believed() -> None:
    nodes, pilots, leased, pool = lent(20)
    drained = [node(one.name, "ALLOCATED", "DRAIN") for one in nodes[:5]] + nodes[5:]
    now = pool.time_s + 1
    waits = job("9", sched_nodes=("n1", "n20"), start_s=now + 2, node_count=21)
    view = pool.see(drained, [*pilots, waits], leased)
    assert members(view) == leased.keys() - {"n1", "n20"}
    assert (view.nodes["n1"].wanted, view.nodes["n20"].wanted, view.hold is None) == (True, True, False)


def test_an_end_of_many_pilots_at_once_is_not_suspect() -> None:
    nodes, _, leased, pool = lent(20)
    for state, flags in (("ALLOCATED", ("COMPLETING",)), ("IDLE", ("COMPLETING",)), ("IDLE", ())):
        assert pool.see([node(one.name, state, *flags) for one in nodes], (), leased).hold is None


SIX = [f"n{number}" for number in range(1, 7)]


def starting(pool: Pool, *nodes: str, **fields: Any) -> Job:
    """A job of five nodes that Slurm is just starting, on these nodes as far as its plan says."""
    told: dict[str, Any] = {"sched_nodes": nodes, "start_s": pool.time_s + 1, "node_count": LARGE, **fields}
    return job("9", **told)


def preempted(pool: Pool, *jobs: Job) -> PoolView:
    """Pilots on n1 and n3, and then Slurm has preempted that on n1."""
    for _ in range(2):
        pool.see(map(node, SIX), [pilot("71", "n1"), pilot("73", "n3")], {"n1": "71", "n3": "73"})
    return pool.see([node("n1", "IDLE", "COMPLETING"), *map(node, SIX[1:])], [pilot("73", "n3"), *jobs], {"n3": "73"})


def test_regression_an_idle_node_that_the_plan_of_a_preempting_job_does_not_name_was_lent() -> None:
    pool = Pool()
    view = preempted(pool, starting(pool, "n1", "n2", "n4"))
    assert view.counted_on == set(SIX)
    assert "n6" in members(view), "it is in the pool, and comes to nobody for now"
    busy = [node(name, "ALLOCATED") if name in ("n1", "n2") else node(name) for name in SIX]
    view = pool.see(busy, [pilot("73", "n3"), job("9", "RUNNING", nodes=("n1", "n2"))], {"n3": "73"})
    assert not view.counted_on, "the job has started"


def test_a_job_that_slurm_starts_on_idle_nodes_alone_holds_nothing() -> None:
    pool = Pool()
    assert not preempted(pool, starting(pool, "n4", "n5")).counted_on


def test_a_preempting_job_holds_the_nodes_of_its_partitions_alone_and_none_that_it_excludes() -> None:
    pool = Pool()
    assert not preempted(pool, starting(pool, "n1", partition=("fat",))).counted_on
    pool = Pool()
    view = preempted(pool, starting(pool, "n1", request=JobRequest(excluded=("n6",))))
    assert view.counted_on == set(SIX[:-1])


@pytest.mark.parametrize("reason", ["JobHeldUser", "Licenses"])
def test_a_job_that_something_else_than_a_lack_of_nodes_bars_holds_nothing(reason: str) -> None:
    pool = Pool()
    assert not preempted(pool, starting(pool, "n1", reason=reason)).counted_on


def test_a_preempting_job_holds_nodes_for_a_few_seconds_at_most_and_not_again_for_as_long_as_it_waits() -> None:
    pool = Pool()
    preempted(pool, starting(pool, "n1", "n2"))
    held = []
    for _ in range(30):  # its plan is ever for now, as that of a job that is locked out
        view = pool.see(map(node, SIX), [pilot("73", "n3"), starting(pool, "n1", "n2")], {"n3": "73"})
        held.append(bool(view.counted_on))
    assert held == [True] * 5 + [False] * 25


def test_a_clock_that_is_set_back_lets_no_job_hold_nodes_for_longer() -> None:
    pool = Pool()
    preempted(pool, starting(pool, "n1", "n2"))
    pool.memory, pool.time_s = pool.memory.moved(-500.0), pool.time_s - 500.0
    held = [bool(pool.see(map(node, SIX), [starting(pool, "n1", "n2")]).counted_on) for _ in range(10)]
    assert held == [True] * 5 + [False] * 5


def test_a_preempting_job_whose_earmark_is_free_of_pilots_holds_no_other_node() -> None:
    pool = Pool()
    view = preempted(pool, starting(pool, "n1", "n2", node_count=6))
    assert view.earmarks["9"].leaving == ("n3",)
    assert view.counted_on == set(SIX), "a pilot is still there"
    pool = Pool()
    view = preempted(pool, starting(pool, "n1", "n2", node_count=2))
    assert "n3" not in view.earmarks["9"].nodes
    assert not view.counted_on


STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(SIX)),  # the plan's nodes
        st.sampled_from([0.0, 0.0, 1.0, 30.0, -5.0]),  # when it is to start
        st.sets(st.sampled_from(SIX)),  # where pilots are
        st.booleans(),  # whether it waits
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(STEPS, st.sampled_from([("batch",), ("batch", "gpu"), ("gpu",)]))
def test_S1b_no_node_is_lent_that_a_job_seen_preempting_may_use_until_it_has_started_or_its_hold_is_over(
    steps: list[tuple[set[str], float, set[str], bool]], asked: tuple[str, ...]
) -> None:
    pool = Pool(PoolConfig(debounce_polls=1))
    kinds = {name: ("batch" if number < 3 else "gpu", PARTITION) for number, name in enumerate(SIX)}
    nodes = [node(name, partitions=kinds[name]) for name in SIX]
    had: set[str] = set()
    since_s: float | None = None
    for plan, in_s, on, waits in steps:
        now_s = pool.time_s + 1.0
        start = job("9", partition=asked, sched_nodes=tuple(sorted(plan)), start_s=now_s + in_s, node_count=LARGE)
        pilots = [pilot(f"7{name}", name) for name in sorted(on)]
        view = pool.see(nodes, [*pilots, *([start] if waits else [])], {name: f"7{name}" for name in on})
        if not waits or in_s > 1.0 or not plan:
            since_s = None
        elif since_s is None and plan & (on | had):
            since_s = now_s
        core = Core()
        core.arrive(registration("1", nodes_max=6))
        lent = {item.node for item in granted(core.apply(PoolObserved(view.time_s, view)))}
        lent |= {item.node for item in granted(core.arrive(registration("2", nodes_max=6), after_s=1.0))}
        if since_s is not None and now_s - since_s <= COUNTED_ON_S:
            assert not lent & {name for name in SIX if set(kinds[name]) & set(asked)}
        had = set(on)
