"""Which waiting jobs keep pilots away: the rule that the pool and the guard share."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.pilots.pending_reasons import (
    REASONS,
    Standing,
    came_s,
    is_news,
    lacks_plan,
    plan_window_s,
    planned_on,
    standing,
    undated_since,
    waits_for_nodes,
    whole,
)
from slurm_plugin.read.parse import unreadable_job
from slurm_plugin.read.types import Job
from tests.slurm_plugin.pending import EXPECTED, KNOWN, LAST_RUN, NOW_S, RUN_MINUTES_PER_USER, queued

BOTH = ("batch", "gpu")
# What held growth before: in the pool (an allow-list), and in the guard (a deny-list). The rest decided alike.
POOL_LENT_AND_GUARD_REFUSED = [
    *(reason for reason in EXPECTED[Standing.WAITS] if reason not in ("", "None", "Resources", "Priority")),
    *RUN_MINUTES_PER_USER,
]


@pytest.mark.parametrize(
    ("reason", "expected"), [(reason, kind) for kind, reasons in EXPECTED.items() for reason in reasons]
)
def test_every_reason_of_slurm_has_one_meaning(reason: str, expected: Standing) -> None:
    assert standing(reason) is expected


@pytest.mark.parametrize("reason", ["NeverHeardOf", "QoSLimit", "Reservation42", "somebody held it", "(null)"])
def test_an_unknown_reason_waits_for_nodes(reason: str) -> None:
    assert standing(reason) is Standing.WAITS


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
def test_where_pool_and_guard_disagreed_both_hold_unless_slurm_tests_a_limit_before_nodes(reason: str) -> None:
    assert waits_for_nodes(queued(reason=reason)) is (reason not in RUN_MINUTES_PER_USER)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ("JobHeldUser,Resources", Standing.WAITS),
        ("Resources,JobHeldAdmin", Standing.WAITS),
        ("JobArrayTaskLimit,JobHeldAdmin", Standing.BARRED),
        ("JobHeldUser,JobArrayTaskLimit", Standing.BARRED),
        ("JobHeldUser,PartitionTimeLimit", Standing.ONE_PARTITION),
        ("JobHeldUser,NeverHeardOf", Standing.WAITS),
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
    assert not waits_for_nodes(queued(reason=reason))
    assert waits_for_nodes(queued(reason=reason, partition=BOTH))


@pytest.mark.parametrize("reason", ["JobHeldUser", "Licenses", "QOSGrpCpuLimit"])
def test_any_other_reason_holds_for_all_its_partitions(reason: str) -> None:
    assert not waits_for_nodes(queued(reason=reason, partition=BOTH))


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


@pytest.mark.parametrize(
    ("submit_s", "start_s", "came"),
    [
        (-50.0, None, -50.0),
        (-50.0, -3.0, -3.0),  # eligible since then: it had to wait
        (-3.0, -50.0, -3.0),  # submitted anew
        (-50.0, 60.0, -50.0),  # a plan is no time at which it came
        (-50.0, 1.0, 1.0),  # clocks are a second apart
        (1.0, None, 1.0),
        (2.0, None, None),  # of another clock
        (2.0, -3.0, None),
    ],
)
def test_a_job_came_when_it_was_submitted_or_became_eligible(
    submit_s: float, start_s: float | None, came: float | None
) -> None:
    job = queued(submit_s=NOW_S + submit_s, start_s=None if start_s is None else NOW_S + start_s)
    assert came_s(job, NOW_S) == (None if came is None else NOW_S + came)


def test_nobody_can_say_when_a_job_came_that_cannot_be_read() -> None:
    assert came_s(unreadable_job("why", "7", "batch"), NOW_S) is None


@pytest.mark.parametrize(
    ("submit_s", "looked_s", "news"),
    [(100.0, 99.9, True), (100.0, 100.0, True), (100.0, 100.9, True), (100.0, 101.0, False), (100.0, 0.0, True)],
)
def test_a_job_of_the_same_second_as_the_look_may_have_come_after_it(
    submit_s: float, looked_s: float, news: bool
) -> None:
    assert is_news(queued(submit_s=NOW_S + submit_s), NOW_S + 200, NOW_S + looked_s, {}) is news


TIMES = st.floats(NOW_S - 1000, NOW_S + 1000)


@given(TIMES, st.none() | TIMES, TIMES, st.floats(0.0, 5.0))
def test_whatever_came_after_the_look_by_a_clock_of_whole_seconds_is_news(
    came: float, submitted: float | None, looked_s: float, later_s: float
) -> None:
    """Submitted and eligible at once, or submitted before and eligible since `came`."""
    submit_s = math.floor(came if submitted is None else min(submitted, came))
    job = queued(submit_s=float(submit_s), start_s=None if submitted is None else float(math.floor(came)))
    now_s = max(came, looked_s) + later_s
    news = is_news(job, now_s, looked_s, {})
    if came >= looked_s:
        assert news
    if came < looked_s - 1.0:
        assert not news


UNDATED = st.builds(
    lambda id_, dated: queued(id=id_, submit_s=0.0) if dated else unreadable_job("why", id_, "batch"),
    st.sampled_from(["7", "9_[1-5]", "9_[2-5]", "9_1"]),
    st.booleans(),
)


@given(
    st.lists(st.tuples(st.lists(UNDATED, max_size=3), st.floats(-500, 50)), min_size=1, max_size=8),
    st.floats(1.0, 60.0),
)
def test_no_job_that_cannot_be_read_is_news_to_a_daemon_that_looks_after_it_was_first_seen(
    polls: list[tuple[list[Job], float]], later_s: float
) -> None:
    since, now_s = {}, NOW_S
    for jobs, passed_s in polls:
        before, now_s = since, now_s + passed_s
        since = undated_since(before, jobs, now_s)
        unread = [job for job in jobs if job.unreadable]
        assert set(since) == {whole(job) for job in unread}
        assert all(is_news(job, now_s, now_s - 100, since) for job in unread if whole(job) not in before)
        assert not any(is_news(job, now_s, now_s + later_s, since) for job in unread), "whatever the clock did"


def test_a_job_that_cannot_be_read_has_been_there_since_it_was_first_seen_and_starts_anew_once_it_was_gone() -> None:
    odd = unreadable_job("why", "7", "batch")
    since = undated_since({}, [odd, queued(id="8")], NOW_S)
    assert since == {"7": NOW_S}
    since = undated_since(since, [odd], NOW_S + 10)
    assert since == {"7": NOW_S}
    assert undated_since(since, [odd], NOW_S - 3600) == {"7": NOW_S - 3600}, "a clock that is set back"
    assert undated_since(undated_since(since, [], NOW_S + 20), [odd], NOW_S + 30) == {"7": NOW_S + 30}
