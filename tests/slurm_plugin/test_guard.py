"""When the guard lets a pilot start, in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.guard import guard
from slurm_plugin.types import Job
from slurm_plugin.waiting import SiteRules, unplanned_since
from tests.slurm_plugin.pending import NOW_S, queued


def objection(
    *jobs: Job,
    now_s: float = NOW_S,
    since: dict[str, float] | None = None,
    plan_wait_s: float = 30.0,
    min_window_s: float = 20.0,
) -> str | None:
    return guard(
        jobs,
        "n1",
        now_s,
        SiteRules(plan_wait_s, min_window_s),
        node_partitions={"batch", "elastic"},
        pilot_partition="elastic",
        since=unplanned_since({}, jobs, NOW_S, min_window_s) if since is None else since,
    )


def test_an_empty_queue_lets_a_pilot_start() -> None:
    assert objection() is None


def test_a_regular_job_without_a_plan_holds_pilots_back() -> None:
    assert objection(queued()) == "job 7 waits without a plan (Resources)"


def test_a_job_planned_elsewhere_or_later_lets_a_pilot_start() -> None:
    assert objection(queued(start_s=NOW_S, sched_nodes=("n2",))) is None
    assert objection(queued(start_s=NOW_S + 20, sched_nodes=("n1", "n2"))) is None


def test_a_node_that_is_planned_within_the_smallest_window_gets_no_pilot() -> None:
    assert objection(queued(start_s=NOW_S + 19, sched_nodes=("n1",))) == "job 7 is planned on n1 in 19 s"
    assert objection(queued(start_s=NOW_S + 19, sched_nodes=("n1",)), min_window_s=10) is None
    assert objection(queued(start_s=NOW_S + 40, sched_nodes=("n1",)), min_window_s=60) is not None


def test_a_node_whose_job_should_have_started_already_gets_no_pilot() -> None:
    assert objection(queued(start_s=NOW_S - 3, sched_nodes=("n1",))) == "job 7 is planned on n1 in 0 s"


def test_a_job_that_never_gets_a_plan_holds_pilots_back_for_the_plan_wait_only() -> None:
    since: dict[str, float] = {}
    held_s = 0
    for second in range(60):
        since = unplanned_since(since, [queued()], NOW_S + second, 20.0)
        held_s += objection(queued(), now_s=NOW_S + second, since=since, plan_wait_s=30) is not None
    assert held_s == 30


def test_the_plan_wait_starts_anew_after_a_job_had_a_plan() -> None:
    since = unplanned_since({}, [queued()], NOW_S, 20.0)
    since = unplanned_since(since, [queued(start_s=NOW_S + 90, sched_nodes=("n2",))], NOW_S + 10, 20.0)
    assert unplanned_since(since, [queued()], NOW_S + 20, 20.0) == {"7": NOW_S + 20}


def test_the_tasks_of_an_array_wait_as_one_job() -> None:
    since = unplanned_since({}, [queued(id="9_[1-5]")], NOW_S, 20.0)
    assert unplanned_since(since, [queued(id="9_[3-5]")], NOW_S + 5, 20.0) == {"9": NOW_S}


@pytest.mark.parametrize(
    "reason",
    [
        "Dependency",
        "DependencyNeverSatisfied",
        "BeginTime",
        "JobHeldUser",
        "JobHeldAdmin",
        "launch failed requeued held",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpNodeLimit",
        "PartitionTimeLimit",
        "PartitionDown",
        "Licenses",
        "Reservation",
    ],
)
def test_a_job_that_may_not_start_by_rule_holds_nothing_back(reason: str) -> None:
    assert objection(queued(reason=reason)) is None


@pytest.mark.parametrize("reason", ["None", "", "Priority", "Resources", "ReqNodeNotAvail, UnavailableNodes:n3", "New"])
def test_any_other_reason_counts_as_waiting_for_a_plan(reason: str) -> None:
    assert objection(queued(reason=reason)) is not None


def test_a_plan_wait_and_a_smallest_window_of_0_let_a_pilot_start_whatever_waits() -> None:
    waiting = [queued(), queued(id="8", start_s=NOW_S - 3, sched_nodes=("n1",))]
    assert objection(*waiting, plan_wait_s=0.0, min_window_s=0.0) is None


def test_a_held_jobs_old_plan_keeps_no_pilot_off() -> None:
    assert objection(queued(start_s=NOW_S, sched_nodes=("n1",), reason="JobHeldUser")) is None


def test_a_start_in_the_past_without_nodes_is_no_plan() -> None:
    assert objection(queued(start_s=NOW_S - 1, reason="None")) is not None


def test_other_pilots_and_jobs_of_partitions_elsewhere_hold_nothing_back() -> None:
    assert objection(queued(partition=("elastic",))) is None
    assert objection(queued(partition=("bft-driver",))) is None
    assert objection(queued(partition=("elastic", "batch"))) is not None


def test_running_jobs_hold_nothing_back() -> None:
    assert objection(queued(state="RUNNING", nodes=("n1",), start_s=NOW_S - 5)) is None


@given(
    starts=st.lists(st.one_of(st.none(), st.floats(-100, 100)), max_size=6),
    window_s=st.floats(0, 60),
    wait_s=st.floats(0, 60),
)
def test_no_pilot_starts_on_a_node_planned_within_the_window(
    starts: list[float | None], window_s: float, wait_s: float
) -> None:
    jobs = [
        queued(id=str(number), start_s=None if start is None else NOW_S + start, sched_nodes=("n1",) if start else ())
        for number, start in enumerate(starts)
    ]
    if objection(*jobs, min_window_s=window_s, plan_wait_s=wait_s) is None:
        planned = [job.start_s for job in jobs if job.sched_nodes and job.start_s is not None]
        assert all(max(0.0, start - NOW_S) >= window_s for start in planned)
