"""When the guard lets a pilot start, in simulated time."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.pilots.guard import guard
from slurm_plugin.pilots.pending_reasons import Rules, undated_since
from slurm_plugin.read.parse import unreadable_job
from slurm_plugin.read.types import Job, JobRequest
from tests.slurm_plugin.pending import NOW_S, queued
from tests.support.messages import wording


def objection(
    *jobs: Job,
    now_s: float = NOW_S,
    since: dict[str, float] | None = None,
    looked_s: float = NOW_S - 2,
    min_window_s: float = 20.0,
) -> str | None:
    """What the guard says of a pilot on n1; a job comes a second after the daemon's look, unless it says otherwise."""
    return guard(
        jobs,
        "n1",
        now_s,
        Rules(min_window_s, looked_s),
        node_partitions={"batch", "elastic"},
        pilot_partition="elastic",
        since=undated_since({}, jobs, now_s) if since is None else since,
    )


def test_an_empty_queue_lets_a_pilot_start() -> None:
    assert objection() is None


def test_a_regular_job_without_a_plan_that_came_after_the_daemons_look_holds_pilots_back() -> None:
    assert objection(queued()) == wording("slurm_plugin.guard.just_come", id=7, job="Resources")


def test_a_regular_job_without_a_plan_that_the_daemon_could_see_lets_a_pilot_start() -> None:
    assert objection(queued(), looked_s=NOW_S) is None
    assert objection(queued(submit_s=NOW_S - 86400.0)) is None


def test_regression_a_pilot_on_an_idle_node_locked_a_new_job_out_that_slurm_had_preempted_for_elsewhere() -> None:
    # as a cluster of six nodes showed it: two pilots preempted, n1 idle and not in the plan, and counted on
    starting = queued(start_s=NOW_S, sched_nodes=("n2", "n3"), submit_s=NOW_S - 1)
    assert objection(starting) == wording("slurm_plugin.guard.being_started", id=7, node="n1")
    assert objection(starting, looked_s=NOW_S) is None, "the daemon has seen it, and holds what it may use"
    assert objection(queued(start_s=NOW_S + 30, sched_nodes=("n2",), submit_s=NOW_S - 1)) is None
    assert objection(queued(start_s=NOW_S, sched_nodes=("n2",), partition=("fat",))) is None
    others = JobRequest(excluded=("n1",))
    assert objection(queued(start_s=NOW_S, sched_nodes=("n2",), submit_s=NOW_S - 1, request=others)) is None


def calm(*jobs: Job, calm_s: float = NOW_S + 1) -> str | None:
    """What the guard says where the daemon looks again before the cycle that comes after `calm_s`."""
    return guard(
        jobs,
        "n1",
        NOW_S,
        Rules(20.0, NOW_S - 2, calm_s),
        node_partitions={"batch", "elastic"},
        pilot_partition="elastic",
        since={},
    )


def test_regression_no_pilot_ever_started_where_a_job_was_submitted_every_second() -> None:
    assert calm(queued(reason="Priority")) is None
    assert calm(queued(reason="Priority"), calm_s=NOW_S) is not None, "a cycle may come before the daemon has looked"
    assert calm(queued(reason="Priority"), calm_s=0.0) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Resources"},
        {"reason": "None"},
        {"reason": "Priority,Resources"},
        {"reason": "Priority", "partition": ("batch", "fat")},
        {"reason": "Priority", "reservation": "r"},
        {"reason": "Priority", "start_s": NOW_S + 5, "sched_nodes": ("n1",)},
    ],
)
def test_what_may_start_before_the_next_cycle_or_is_planned_holds_pilots_back_as_ever(changes: dict[str, Any]) -> None:
    assert calm(queued(**changes)) is not None


def test_a_job_of_the_same_second_as_the_daemons_look_holds_pilots_back() -> None:
    assert objection(queued(), looked_s=NOW_S - 0.01) is not None


def test_a_job_that_became_eligible_after_the_daemons_look_holds_pilots_back_however_old_it_is() -> None:
    waited = queued(submit_s=NOW_S - 86400.0, start_s=NOW_S - 1, reason="None")
    assert objection(waited) is not None
    assert objection(waited, looked_s=NOW_S) is None


def test_a_daemon_that_has_not_looked_yet_lets_no_pilot_start_where_anything_waits_without_a_plan() -> None:
    assert objection(queued(submit_s=NOW_S - 86400.0), looked_s=0.0) is not None
    assert objection(queued(start_s=NOW_S + 90, sched_nodes=("n2",)), looked_s=0.0) is None


def test_a_job_submitted_by_a_clock_that_is_ahead_holds_pilots_back_until_the_next_look_and_no_longer() -> None:
    ahead = queued(submit_s=NOW_S + 3600.0)
    assert objection(ahead) is not None
    since = undated_since({}, [ahead], NOW_S)
    assert objection(ahead, now_s=NOW_S + 5, looked_s=NOW_S + 4, since=since) is None


def test_a_job_that_cannot_be_read_holds_pilots_back_until_the_daemon_has_looked_as_well() -> None:
    odd = unreadable_job("not a number: 'many'", "7", "batch")
    assert objection(odd) == wording(
        "slurm_plugin.guard.just_come",
        id=7,
        job=wording("slurm_plugin.guard.unreadable", unreadable="not a number: 'many'"),
    )
    since = undated_since({}, [odd], NOW_S)
    assert objection(odd, now_s=NOW_S + 5, looked_s=NOW_S + 0.5, since=since) is not None, "the same second"
    assert objection(odd, now_s=NOW_S + 5, looked_s=NOW_S + 1, since=since) is None


def test_a_job_planned_elsewhere_or_later_lets_a_pilot_start() -> None:
    assert objection(queued(start_s=NOW_S, sched_nodes=("n2",)), looked_s=NOW_S) is None
    assert objection(queued(start_s=NOW_S + 20, sched_nodes=("n1", "n2"))) is None


def test_a_node_that_is_planned_within_the_smallest_window_gets_no_pilot() -> None:
    assert objection(queued(start_s=NOW_S + 19, sched_nodes=("n1",))) == wording(
        "slurm_plugin.guard.planned", id=7, node="n1", max=19
    )
    assert objection(queued(start_s=NOW_S + 19, sched_nodes=("n1",)), min_window_s=10) is None
    assert objection(queued(start_s=NOW_S + 40, sched_nodes=("n1",)), min_window_s=60) is not None


def test_a_node_whose_job_should_have_started_already_gets_no_pilot() -> None:
    assert objection(queued(start_s=NOW_S - 3, sched_nodes=("n1",))) == wording(
        "slurm_plugin.guard.planned", id=7, node="n1", max=0
    )


def test_a_job_that_never_gets_a_plan_holds_pilots_back_until_the_daemons_next_look() -> None:
    """The daemon looks once a second, 0.3 s after each whole one, and the job comes at 5.9 s."""
    job, held = queued(submit_s=NOW_S + 5), []
    for tenth in range(59, 100):
        second = tenth / 10
        looked_s = math.floor(second - 0.3) + 0.3
        if objection(job, now_s=NOW_S + second, looked_s=NOW_S + looked_s) is not None:
            held.append(second)
    assert held == [5.9, 6.0, 6.1, 6.2]


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


def test_a_smallest_window_of_0_lets_a_pilot_start_whatever_is_planned() -> None:
    assert objection(queued(id="8", start_s=NOW_S - 3, sched_nodes=("n1",)), looked_s=NOW_S, min_window_s=0.0) is None


def test_a_held_jobs_old_plan_keeps_no_pilot_off() -> None:
    assert objection(queued(start_s=NOW_S, sched_nodes=("n1",), reason="JobHeldUser")) is None


def test_a_start_in_the_past_without_nodes_is_no_plan() -> None:
    assert objection(queued(start_s=NOW_S - 1, reason="None")) is not None


def test_a_waiting_pilot_of_another_harvested_partition_holds_back_only_while_the_daemon_cannot_have_seen_it() -> None:
    other = queued(partition=("elastic2",), name="bft-pilot", reason="Priority")

    def refused(looked_s: float) -> bool:
        parts, since = {"batch", "elastic", "elastic2"}, undated_since({}, [other], NOW_S)
        rules = Rules(20.0, looked_s)
        kept = guard([other], "n1", NOW_S, rules, node_partitions=parts, pilot_partition="elastic", since=since)
        return kept is not None

    assert refused(NOW_S - 2)
    assert not refused(NOW_S)


def test_other_pilots_and_jobs_of_partitions_elsewhere_hold_nothing_back() -> None:
    assert objection(queued(partition=("elastic",))) is None
    assert objection(queued(partition=("bft-driver",))) is None
    assert objection(queued(partition=("elastic", "batch"))) is not None


def test_running_jobs_hold_nothing_back() -> None:
    assert objection(queued(state="RUNNING", nodes=("n1",), start_s=NOW_S - 5)) is None


@given(starts=st.lists(st.one_of(st.none(), st.floats(-100, 100)), max_size=6), window_s=st.floats(0, 60))
def test_no_pilot_starts_on_a_node_planned_within_the_window(starts: list[float | None], window_s: float) -> None:
    jobs = [
        queued(id=str(number), start_s=None if start is None else NOW_S + start, sched_nodes=("n1",) if start else ())
        for number, start in enumerate(starts)
    ]
    if objection(*jobs, min_window_s=window_s, looked_s=NOW_S) is None:
        planned = [job.start_s for job in jobs if job.sched_nodes and job.start_s is not None]
        assert all(max(0.0, start - NOW_S) >= window_s for start in planned)
