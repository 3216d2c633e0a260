"""Which waiting jobs keep pilots away: the rule that the pool and the guard share."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.types import Job
from slurm_plugin.waiting import (
    REASONS,
    Standing,
    holds_growth,
    lacks_plan,
    plan_window_s,
    planned_on,
    standing,
    unplanned_since,
    waits_for_room,
    whole,
)
from tests.slurm_plugin.pending import EXPECTED, KNOWN, LAST_RUN, LIMITS, NOW_S, RUN_MINUTES_PER_USER, queued

BOTH = ("batch", "gpu")
# What held growth before: in the pool (an allow-list), and in the guard (a deny-list). The rest decided alike.
POOL_LENT_AND_GUARD_REFUSED = [
    *(reason for reason in EXPECTED[Standing.ROOM] if reason not in ("", "None", "Resources", "Priority")),
    *RUN_MINUTES_PER_USER,
]


@pytest.mark.parametrize(
    ("reason", "expected"), [(reason, kind) for kind, reasons in EXPECTED.items() for reason in reasons]
)
def test_every_reason_of_slurm_has_one_meaning(reason: str, expected: Standing) -> None:
    assert standing(reason) is expected


@pytest.mark.parametrize("reason", ["NeverHeardOf", "QoSLimit", "Reservation42", "somebody held it", "(null)"])
def test_an_unknown_reason_waits_for_room(reason: str) -> None:
    assert standing(reason) is Standing.ROOM


def test_the_table_names_no_reason_twice_and_none_that_slurm_does_not_have() -> None:
    names = [name for name, _, _ in REASONS]
    assert len(set(names)) == len(names)
    assert all(why for _, _, why in REASONS)
    for name in names:
        assert any(fnmatchcase(reason.partition(",")[0], name) for reason in KNOWN), name


def test_no_reason_of_slurm_matches_two_patterns_that_disagree() -> None:
    for reason in KNOWN:
        found = {kind for name, kind, _ in REASONS if "*" in name and fnmatchcase(reason.partition(",")[0], name)}
        assert len(found) <= 1 or reason == "QOSNotAllowed", reason


@pytest.mark.parametrize("reason", POOL_LENT_AND_GUARD_REFUSED)
def test_where_pool_and_guard_disagreed_both_hold_unless_slurm_tests_a_limit_before_room(reason: str) -> None:
    assert waits_for_room(queued(reason=reason)) is (reason not in RUN_MINUTES_PER_USER)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ("JobHeldUser,Resources", Standing.ROOM),
        ("Resources,JobHeldAdmin", Standing.ROOM),
        ("JobArrayTaskLimit,JobHeldAdmin", Standing.BARRED),
        ("JobHeldUser,JobArrayTaskLimit", Standing.BARRED),
        ("JobHeldUser,PartitionTimeLimit", Standing.ONE_PARTITION),
        ("JobHeldUser,NeverHeardOf", Standing.ROOM),
        ("JobHeldAdmin,JobHeldUser", Standing.HELD),
        ("Dependency, on a job of n1,n2 and others", Standing.HELD),
    ],
)
def test_regression_a_task_that_could_start_was_hidden_behind_the_first_reason_of_its_array(
    reasons: str, expected: Standing
) -> None:
    assert standing(reasons) is expected


@pytest.mark.parametrize("reason", ["launch_failed_requeued_held", "Nodes_required_for_job_are_DOWN,_DRAINED_or_so"])
def test_a_reason_of_several_words_means_the_same_with_scontrols_underscores(reason: str) -> None:
    assert standing(reason) is standing(reason.replace("_", " "))


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "PartitionDown", "QOSNotAllowed", "BadConstraints"])
def test_a_reason_of_one_partition_says_nothing_of_a_job_that_asked_for_two(reason: str) -> None:
    assert not waits_for_room(queued(reason=reason))
    assert waits_for_room(queued(reason=reason, partition=BOTH))


@pytest.mark.parametrize("reason", ["JobHeldUser", "Licenses", "QOSGrpCpuLimit"])
def test_any_other_reason_holds_for_all_its_partitions(reason: str) -> None:
    assert not waits_for_room(queued(reason=reason, partition=BOTH))


@pytest.mark.parametrize("reason", EXPECTED[Standing.HELD])
def test_a_held_job_or_one_that_depends_claims_no_node_by_its_old_plan(reason: str) -> None:
    old = queued(reason=reason, sched_nodes=("n1",), start_s=NOW_S - 5)
    assert plan_window_s(old, NOW_S) is None
    assert not planned_on(old, "n1", NOW_S, 20)


@pytest.mark.parametrize(
    "reason", ["BeginTime", "Licenses", "AssocGrpNodeLimit", "PartitionDown", "NeverHeardOf", *LAST_RUN]
)
def test_the_plan_of_any_other_job_counts(reason: str) -> None:
    assert planned_on(queued(reason=reason, sched_nodes=("n1",), start_s=NOW_S + 5), "n1", NOW_S, 20)


@pytest.mark.parametrize(
    ("start_s", "min_window_s", "planned"),
    [(-3.0, 20.0, True), (19.9, 20.0, True), (20.0, 20.0, False), (40.0, 60.0, True), (10.0, 5.0, False)],
)
def test_a_node_is_kept_free_when_it_is_planned_sooner_than_the_smallest_window(
    start_s: float, min_window_s: float, planned: bool
) -> None:
    job = queued(sched_nodes=("n1", "n2"), start_s=NOW_S + start_s)
    assert planned_on(job, "n1", NOW_S, min_window_s) is planned
    assert not planned_on(job, "n3", NOW_S, min_window_s)
    assert not lacks_plan(job, NOW_S, min_window_s)


def test_a_smallest_window_of_0_keeps_no_node_free() -> None:
    assert not planned_on(queued(sched_nodes=("n1",), start_s=NOW_S - 5), "n1", NOW_S, 0.0)


@pytest.mark.parametrize(
    ("start_s", "min_window_s", "lacks"),
    [
        (None, 20.0, True),
        (-1.0, 20.0, True),
        (0.0, 0.0, True),
        (19.9, 20.0, True),
        (20.0, 20.0, False),
        (1.0, 0.0, False),
    ],
)
def test_a_start_without_nodes_is_a_plan_while_it_is_far_enough_away(
    start_s: float | None, min_window_s: float, lacks: bool
) -> None:
    job = queued(start_s=None if start_s is None else NOW_S + start_s)
    assert lacks_plan(job, NOW_S, min_window_s) is lacks


def test_a_job_that_runs_neither_waits_nor_has_a_plan() -> None:
    running = queued(state="RUNNING", nodes=("n1",), sched_nodes=("n1",), start_s=NOW_S)
    assert not lacks_plan(running, NOW_S, 20)
    assert plan_window_s(running, NOW_S) is None


@pytest.mark.parametrize(("id_", "array"), [("7", "7"), ("9_4", "9"), ("9_[1-5]", "9"), ("12+1", "12+1")])
def test_the_tasks_of_an_array_are_one_job(id_: str, array: str) -> None:
    assert whole(queued(id=id_)) == array


JOBS = st.builds(
    queued,
    id=st.sampled_from(["7", "9_[1-5]", "9_[2-5]", "9_1"]),
    reason=st.sampled_from([*KNOWN, *LIMITS[:1], "NeverHeardOf"]),
    start_s=st.none() | st.floats(NOW_S - 100, NOW_S + 100),
    sched_nodes=st.sampled_from([(), ("n1",)]),
)


@given(
    st.lists(st.tuples(st.lists(JOBS, max_size=3), st.floats(-500, 50)), min_size=1, max_size=8), st.floats(0.0, 60.0)
)
def test_no_job_holds_growth_for_longer_than_the_plan_wait_whatever_its_reason_and_the_clock(
    polls: list[tuple[list[Job], float]], plan_wait_s: float
) -> None:
    since, now_s = {}, NOW_S
    for jobs, passed_s in polls:
        now_s += passed_s
        since = unplanned_since(since, jobs, now_s, 20.0)
        assert all(not holds_growth(seen_s, now_s + plan_wait_s + 0.001, plan_wait_s) for seen_s in since.values())
        assert set(since) == {whole(job) for job in jobs if lacks_plan(job, now_s, 20.0)}


def test_a_clock_that_is_set_back_lets_no_job_hold_growth_for_longer() -> None:
    since = unplanned_since({}, [queued()], NOW_S, 20.0)
    assert unplanned_since(since, [queued()], NOW_S - 3600, 20.0) == {"7": NOW_S - 3600}


def test_a_job_with_an_unknown_reason_holds_growth_for_the_plan_wait_and_no_longer() -> None:
    since: dict[str, float] = {}
    held_s = 0
    for second in range(60):
        since = unplanned_since(since, [queued(reason="NeverHeardOf")], NOW_S + second, 20.0)
        held_s += holds_growth(since["7"], NOW_S + second, 30.0)
    assert held_s == 30
