"""The queue of Slurm's backfill scheduler, made from a snapshot."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from bftd.pool.backfill import queue as module
from bftd.pool.backfill.model import Component, QueueEntry
from bftd.pool.backfill.queue import YEAR_S, Queue
from bftd.pool.backfill.topology import Layout
from slurm_plugin.read.types import NO_SCHEDULER, Depth, Job, Partition, Snapshot
from tests.bftd.builders import job, node
from tests.bftd.pool.backfill.queues import GB, NOW_S, both, mask, nodes, queued, waits
from tests.support.messages import wording


def ids(found: Queue) -> list[str]:
    return [entry.id for entry in found.entries]


def only(found: Queue) -> QueueEntry:
    (entry,) = found.entries
    return entry


def batch(name: str = "batch", **fields: Any) -> Partition:
    plain = Partition(name, (), "UP", None, 1)
    return replace(plain, **fields)


def running(id_: str, **fields: Any) -> Job:
    return job(id_, "RUNNING", **fields)


# The order


def test_jobs_come_by_priority_then_by_submission_then_by_id() -> None:
    pending = [
        waits("12", priority=5, submit_s=7.0),
        waits("9", priority=5, submit_s=7.0),
        waits("3", priority=1, submit_s=1.0),
        waits("30", priority=5, submit_s=6.0),
        waits("4", priority=9, submit_s=8.0),
    ]
    assert ids(queued(pending)) == ["4", "30", "9", "12", "3"]


def test_tasks_of_an_array_come_by_index_and_those_that_wait_as_a_whole_last() -> None:
    pending = [waits("7_[11-20]"), waits("7_10"), waits("7_9"), waits("8"), waits("6_[1-2]")]
    assert ids(queued(pending)) == ["6_[1-2]", "7_9", "7_10", "7_[11-20]", "8"]


def test_a_partition_of_a_higher_tier_comes_first_and_a_job_in_both_twice() -> None:
    some = nodes(4, partitions=("batch", "urgent"))
    pending = [waits("1", priority=9), waits("2", partition=("batch", "urgent")), waits("3", partition=("urgent",))]
    tiers = [batch(), batch("urgent", priority_tier=2)]
    found = queued(pending, some, tiers)
    assert ids(found) == ["2", "3", "1", "2"]
    assert found.queued == 4


def test_partitions_whose_tier_is_not_known_count_as_slurms_default() -> None:
    some = nodes(4, partitions=("batch", "other", "unknown"))
    pending = [
        waits("1", partition=("unknown",), priority=3),
        waits("2", partition=("other",), priority=4),
        waits("3", partition=("batch",), priority=2),
    ]
    assert ids(queued(pending, some, [batch(), batch("other", priority_tier=None)])) == ["2", "1", "3"]
    assert ids(queued(pending, some)) == ["2", "1", "3"]
    assert ids(queued(pending, some, [batch(), batch("other", priority_tier=0)])) == ["1", "3", "2"]


# What is left out


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied"])
def test_held_and_dependent_jobs_are_not_in_it_whatever_was_once_planned_for_them(reason: str) -> None:
    found = queued([waits("1", reason=reason, start_s=NOW_S + 60, sched_nodes=("n1",))])
    assert found == Queue((), 0)


def test_a_job_of_priority_0_is_held() -> None:
    assert queued([waits("1", priority=0)]) == Queue((), 0)


def test_a_job_that_something_else_bars_counts_by_its_shown_plan_only() -> None:
    plan = {"start_s": NOW_S + 60, "sched_nodes": ("n1", "n2")}
    found = queued([waits("1", reason="Licenses", **plan), waits("2", reason="QOSMaxJobsPerUserLimit")])
    entry = only(found)
    assert entry.barred
    assert (entry.id, entry.plan_s, entry.plan, entry.limit_s) == ("1", NOW_S + 60, mask(1, 2), 3600.0)
    assert queued([waits("1", reason="BeginTime", start_s=NOW_S + 60)]).entries == ()
    assert queued([waits("1", reason="Licenses", **{**plan, "start_s": NOW_S})]).entries == ()


def test_a_reason_that_is_about_one_partition_bars_a_job_from_no_other() -> None:
    some = nodes(4, partitions=("batch", "other"))
    assert queued([waits("1", reason="PartitionDown")], some).entries == ()
    assert ids(queued([waits("1", reason="PartitionDown", partition=("batch", "other"))], some)) == ["1", "1"]


def test_unreadable_jobs_are_left_out_and_counted() -> None:
    found = queued([waits("1", unreadable="no time"), waits("?x", unreadable="no id", partition=()), waits("3")])
    assert (ids(found), found.queued, found.unreadable) == (["3"], 1, 2)


def test_jobs_of_a_reservation_are_not_in_it_but_are_tried_before_all_others() -> None:
    pending = [waits("1", priority=9), waits("2", reservation="course")]
    assert ids(queued(pending)) == ["1"]
    assert ids(queued(pending, depth=1)) == []


def test_an_expedited_job_comes_before_all_others_whatever_its_tier_and_priority() -> None:
    some = nodes(4, partitions=("batch", "urgent"))
    tiers = [batch(), batch("urgent", priority_tier=9)]
    pending = [waits("1", partition=("urgent",), priority=2**32 - 2), waits("2", priority=1, expedited=True)]
    assert ids(queued(pending, some, tiers)) == ["2", "1"]
    behind_a_reservation = [waits("3", reservation="course", priority=9), *pending]
    assert ids(queued(behind_a_reservation, some, tiers, depth=1)) == ["2"]


def test_only_an_open_partition_takes_jobs_and_one_that_drains_still_starts_what_waits() -> None:
    for state, taken in (("UP", ["1"]), ("DRAIN", ["1"]), ("DOWN", []), ("INACTIVE", []), ("odd", ["1"])):
        assert ids(queued([waits("1")], partitions=[batch(state=state)])) == taken


def test_a_job_over_the_limits_of_a_partition_is_not_in_it() -> None:
    small = [batch(max_nodes=2, max_time_s=3600.0)]
    assert ids(queued([waits("1", node_count=2)], partitions=small)) == ["1"]
    assert ids(queued([waits("1", node_count=3)], partitions=small)) == []
    assert ids(queued([waits("1", time_limit_s=3660.0)], partitions=small)) == []
    assert ids(queued([waits("1", time_limit_s=3660.0, least_s=60.0)], partitions=small)) == ["1"]


@pytest.mark.parametrize("fields", [{"node_count": 9}, {"features": "nobody-has-it"}, {"required": ("who",)}])
def test_what_no_nodes_could_ever_do_is_left_out_and_counts_as_no_try(fields: dict[str, Any]) -> None:
    found = queued([waits("1", priority=2, **fields), waits("2")], depth=1)
    assert ids(found) == ["2"]


# How deep it is looked at


def test_only_as_many_jobs_are_looked_at_as_the_scheduler_tries_and_the_rest_is_said() -> None:
    found = queued([waits(str(number)) for number in range(1, 2001)], depth=3)
    assert ids(found) == ["1", "2", "3"]
    assert found.queued == 2000
    assert found.cut == wording("pool.queue.cut_by_slurm", index=3, waits="2,000")
    assert queued([waits("1"), waits("2")], depth=2).cut == ""


def cycles(*looked: int, of: int) -> tuple[Depth, ...]:
    """Cycles that came so deep, each in a queue of so many lines."""
    return tuple(Depth(NOW_S - 60.0 * index, depth, of) for index, depth in enumerate(looked, 1))


MANY = [waits(str(number)) for number in range(1, 41)]


def test_regression_jobs_that_no_cycle_reaches_kept_all_nodes_for_themselves() -> None:
    found = queued(MANY, depths=cycles(2, 3, of=40))
    assert ids(found) == ["1", "2", "3"], "the deepest of them counts"
    assert found.cut == wording("pool.queue.cut_by_cycles", index=3, waits="40")


@pytest.mark.parametrize(
    "depths",
    [
        (),
        cycles(2, of=40),  # one cycle alone may have been a short one
        cycles(2, 40, 2, of=40),
        cycles(2, 2, of=2),  # a short queue was seen as a whole, and is long now
        cycles(37, 37, of=40),  # some may have started while the cycles were at work
    ],
)
def test_where_cycles_may_have_seen_their_queue_as_a_whole_all_is_looked_at(depths: tuple[Depth, ...]) -> None:
    assert (len(queued(MANY, depths=depths).entries), queued(MANY, depths=depths).cut) == (40, "")


def test_lines_that_count_in_no_cycle_make_none_look_short() -> None:
    barred = [waits(str(number), reason="Licenses") for number in range(1, 31)]
    assert queued([*barred, *MANY[30:]], depths=cycles(10, 10, of=40)).cut == ""
    some = nodes(4, partitions=("batch", "other"))
    twice = [waits(str(number), partition=("batch", "other")) for number in range(1, 21)]
    assert queued(twice, some, depths=cycles(20, 20, of=40)).cut == "", "each started in one of its partitions"


def test_what_a_cycle_passes_over_counts_for_its_depth_and_barred_jobs_do_not() -> None:
    pending = [waits("1", node_count=99), waits("2", reason="Licenses"), *MANY[2:]]
    assert ids(queued(pending, depths=cycles(3, 3, of=40))) == ["3", "4"]
    pending = [waits("1_[1-50]", priority=9), *MANY[1:]]
    assert ids(queued(pending, depths=cycles(21, 21, of=40))) == ["1_[1-50]", "2"], "20 of its tasks are tried"


def test_barred_jobs_count_as_no_try() -> None:
    plan = {"start_s": NOW_S + 60, "sched_nodes": ("n1",)}
    assert ids(queued([waits("1", priority=2, reason="Licenses", **plan), waits("2")], depth=1)) == ["1", "2"]


def test_jobs_beyond_those_of_a_user_a_partition_or_of_both_are_passed_over() -> None:
    some = nodes(4, partitions=("batch", "other"))
    pending = [
        waits("1", user="ann"),
        waits("2", user="ann"),
        waits("3", user="ann", partition=("other",)),
        waits("4", user="bob"),
        waits("5", user="bob", partition=("other",)),
    ]
    assert ids(queued(pending, some)) == ["1", "2", "3", "4", "5"]
    assert ids(queued(pending, some, depth_user=1)) == ["1", "4"]
    assert ids(queued(pending, some, depth_partition=2)) == ["1", "2", "3", "5"]
    assert ids(queued(pending, some, depth_user_partition=1)) == ["1", "3", "4", "5"]


def test_a_job_that_is_passed_over_for_one_limit_counts_for_no_other() -> None:
    some = nodes(4, partitions=("batch", "other"))
    pending = [waits("1"), waits("2"), waits("3", partition=("other",))]
    assert ids(queued(pending, some, depth_user=2, depth_user_partition=1)) == ["1", "3"]


def test_each_task_of_an_array_counts_for_its_user() -> None:
    found = queued([waits("1_[1-9]"), waits("2"), waits("3", user="bob")], depth_user=4)
    assert [(entry.id, entry.count) for entry in found.entries] == [("1_[1-9]", 4), ("3", 1)]


def test_an_array_is_tried_as_often_as_slurm_plans_tasks_of_it() -> None:
    pending = [waits("1_[1-99]"), waits("2"), waits("3")]
    assert ids(queued(pending, depth=21, array_most=20)) == ["1_[1-99]", "2"]
    assert ids(queued(pending, depth=1, array_most=0)) == ["1_[1-99]"]


# Arrays and heterogeneous jobs


@pytest.mark.parametrize(
    ("id_", "count"),
    [
        ("12", 1), ("12_7", 1), ("12_[3]", 1), ("12_[3-5,9]", 4), ("12_[3-5,9%2]", 2), ("12_[0-20:4]", 6),
        ("12_[0-99999]", 1000), ("12_[0-99999%7]", 7), ("12_[5-3]", 1), ("12_[", 1), ("12_[3%5]", 1), ("12_[%0]", 1),
        ("3_[1-2,4", 3), ("3_[1-2,4-", 3), ("3_[1-2,4,...]", 3), ("12_[1-9%", 9), ("?odd", 1),
        ("12_[0-9" + "9" * 30 + "]", 1000), ("12_[" + ",".join(map(str, range(0, 200_000, 2))) + "%3]", 3),
    ],
)  # fmt: skip
def test_as_many_tasks_may_start_as_wait_and_may_run_at_once(id_: str, count: int) -> None:
    assert only(queued([waits(id_)])).count == count


def test_tasks_that_run_count_against_what_may_run_at_once() -> None:
    others = [running("12_1"), running("12_2", reason=""), job("12_3", "COMPLETING"), running("13_1"), running("1")]
    assert only(queued([waits("12_[4-9%4]")], others=others)).count == 2
    assert only(queued([waits("12_[4-9]")], others=others)).count == 6
    full = [*others, job("12_9", "SUSPENDED"), running("12_8")]
    assert queued([waits("12_[4-9%4]")], others=full).entries == ()
    planned = waits("12_[4-9%4]", start_s=NOW_S + 60, sched_nodes=("n1",))
    assert only(queued([planned], others=full)).barred


def test_the_components_of_a_heterogeneous_job_are_one_entry() -> None:
    some = both(nodes(3), nodes(2, partitions=("gpu",)))
    parts = [
        waits("12+0", node_count=2, time_limit_s=60.0),
        waits("12+1", partition=("gpu", "batch"), time_limit_s=600.0),
    ]
    entry = only(queued([*reversed(parts), waits("5", priority=0)], some))
    batch_nodes, gpu_nodes = mask(0, 1, 2), mask(3, 4)
    assert entry.parts == (Component(batch_nodes, 2, within=batch_nodes), Component(gpu_nodes, 1, within=gpu_nodes))
    assert (entry.id, entry.limit_s, entry.count) == ("12+0", 600.0, 1)


def test_a_heterogeneous_job_comes_where_its_first_component_does() -> None:
    some = nodes(4, partitions=("batch", "urgent"))
    tiers = [batch(), batch("urgent", priority_tier=2)]
    pending = [waits("1"), waits("12+0"), waits("12+1", partition=("urgent",))]
    assert ids(queued(pending, some, tiers)) == ["12+0", "1"]


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "JobHeldUser"}, {"unreadable": "no time"}, {"node_count": 99}, {"partition": ()},
        {"reason": "Licenses"}, {"priority": 0}, {"reservation": "course"}, {"partition": ("closed",)},
    ],
)  # fmt: skip
def test_a_heterogeneous_job_with_a_component_that_cannot_start_is_not_in_it(fields: dict[str, Any]) -> None:
    found = queued([waits("12+0"), waits("12+1", **fields)], partitions=[batch("closed", state="DOWN")])
    assert found.entries == ()


def test_a_heterogeneous_job_is_planned_where_all_its_components_are() -> None:
    first = waits("12+0", start_s=NOW_S + 60, sched_nodes=("n1",))
    second = waits("12+1", start_s=NOW_S + 90, sched_nodes=("n2",))
    entry = only(queued([first, second]))
    assert (entry.plan_s, entry.plan) == (NOW_S + 90, mask(1, 2))
    assert only(queued([first, replace(second, start_s=None)])).plan == 0
    barred = only(queued([first, replace(second, reason="Licenses")]))
    assert (barred.barred, barred.plan) == (True, mask(1, 2))


# Limits, plans, shares


def test_a_job_without_a_limit_has_its_partitions_or_a_year() -> None:
    endless = waits("1", time_limit_s=None)
    assert only(queued([endless])).limit_s == YEAR_S
    assert only(queued([endless], partitions=[batch()])).limit_s == YEAR_S
    assert only(queued([endless], partitions=[batch(max_time_s=60.0)])).limit_s == 60.0


def test_a_job_starts_for_as_little_time_as_it_takes() -> None:
    assert only(queued([waits("1", least_s=600.0)])).least_s == 600.0
    assert only(queued([waits("1")])).least_s == 3600.0
    assert only(queued([waits("1", least_s=9999.0)])).least_s == 3600.0


def test_the_shown_plan_is_told_where_there_is_one_still_to_come() -> None:
    def plan(**fields: Any) -> tuple[float | None, int]:
        entry = only(queued([waits("1", **fields)]))
        return entry.plan_s, entry.plan

    assert plan(start_s=NOW_S + 60, sched_nodes=("n1", "n3")) == (NOW_S + 60, mask(1, 3))
    assert plan(start_s=NOW_S, sched_nodes=("n1",)) == (None, 0)
    assert plan(start_s=NOW_S + 60) == (None, 0)
    assert plan(start_s=None, sched_nodes=("n1",)) == (None, 0)
    assert plan(start_s=NOW_S + 60, sched_nodes=("who",)) == (None, 0)


def test_the_plan_of_a_job_in_two_partitions_counts_where_its_nodes_are() -> None:
    some = both(nodes(2), nodes(2, partitions=("other",)))
    planned = waits("1", partition=("batch", "other"), start_s=NOW_S + 60, sched_nodes=("n3",))
    assert [entry.plan for entry in queued([planned], some).entries] == [0, mask(3)]


def test_a_job_that_shares_may_start_on_nodes_in_use_and_an_exclusive_one_may_not() -> None:
    some = both(nodes(1), nodes(1, state="MIXED", cpus_used=2), nodes(1, state="MIXED", cpus_used=3))
    sharing = waits("1", exclusive=False, cpus=2, memory_bytes=GB)
    part = only(queued([sharing], some)).parts[0]
    assert (part.allowed, part.shared, part.together) == (mask(0, 1, 2), mask(1), 2)
    assert only(queued([replace(sharing, node_count=2)], some)).parts[0].shared == mask(1, 2)
    alone = only(queued([waits("1", exclusive=True, cpus=2)], some)).parts[0]
    assert (alone.shared, alone.together) == (0, 1)
    assert only(queued([sharing], some, [batch(exclusive=True)])).parts[0].shared == 0


def test_what_is_free_on_nodes_in_use_is_seen_anew_at_each_snapshot() -> None:
    sharing = waits("1", exclusive=False, cpus=2, memory_bytes=GB)
    for cpus_used, shared in ((2, mask(0)), (3, 0), (1, mask(0))):
        some = nodes(1, state="MIXED", cpus_used=cpus_used)
        assert only(queued([sharing], some)).parts[0].shared == shared


def test_nodes_that_the_site_changed_are_seen_at_once() -> None:
    asks = waits("1", features="a")
    assert queued([asks], nodes(2)).entries == ()
    assert only(queued([asks], nodes(2, features=("a",)))).parts[0].allowed == mask(0, 1)
    assert only(queued([asks], both(nodes(1), nodes(1, features=("a",))))).parts[0].allowed == mask(1)


def test_young_jobs_and_those_of_low_priority_start_now_or_are_not_planned() -> None:
    young = waits("1", submit_s=NOW_S - 99)
    assert only(queued([young])).reserves
    assert only(queued([young], reserve_age_s=99.0)).reserves
    assert not only(queued([young], reserve_age_s=100.0)).reserves
    since = replace(young, submit_s=0.0, start_s=NOW_S - 50)  # eligible since then
    assert not only(queued([since], reserve_age_s=60.0)).reserves
    assert only(queued([waits("1", priority=5)], reserve_priority=5)).reserves
    assert not only(queued([waits("1", priority=5)], reserve_priority=6)).reserves


# Much, and nonsense


def test_nothing_read_of_the_controller_leaves_slurms_defaults() -> None:
    there = nodes(2)
    snapshot = Snapshot(NOW_S, there, (), ())
    assert snapshot.scheduler == NO_SCHEDULER
    found = queued([waits(str(number)) for number in range(1, 601)], there, read=False)
    assert len(found.entries) == 500
    assert found.cut


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The limits of each job that is worked out, which is the first thing of it."""
    done: list[Any] = []
    limits_s = module._limits_s

    def noted(job: Job, rules: Any) -> tuple[float, float]:
        done.append(job.id)
        return limits_s(job, rules)

    monkeypatch.setattr(module, "_limits_s", noted)
    return done


def test_fifty_thousand_jobs_are_cut_at_the_depth_and_only_those_looked_at_are_worked_out(
    worked_out: list[Any],
) -> None:
    pending = [waits(str(number), priority=number) for number in range(1, 50_001)]
    found = queued(pending, nodes(100), depth=500)
    assert len(worked_out) == 500
    assert ids(found) == [str(number) for number in range(50_000, 49_500, -1)]
    assert found.cut == wording("pool.queue.cut_by_slurm", index=500, waits="50,000")


def test_regression_jobs_that_no_node_could_ever_do_were_all_worked_out_however_many(worked_out: list[Any]) -> None:
    """They are not tried, so bf_max_job_test never ended the look: 50,000 of them took a second of each poll."""
    pending = [waits(str(number), node_count=1000) for number in range(1, 12_001)]
    found = queued(pending, nodes(4), depth=50)
    assert len(worked_out) == 10_000
    assert found.cut == wording("pool.queue.cut_by_time", index="10,000", waits="12,000")


def test_jobs_beyond_a_limit_of_their_user_are_not_worked_out(worked_out: list[Any]) -> None:
    pending = [waits(str(number)) for number in range(1, 1001)] + [waits("2000", user="bob")]
    assert ids(queued(pending, depth_user=3)) == ["1", "2", "3", "2000"]
    assert len(worked_out) == 4


def test_what_is_as_it_was_at_the_snapshot_before_is_not_worked_out_again(worked_out: list[Any]) -> None:
    pending = [waits(str(number), node_count=number % 7 + 1, features="x|y") for number in range(1, 101)]
    some = nodes(9, features=("x",))
    queued(pending, some)
    before = len(worked_out)
    queued(pending, {name: replace(one, state="ALLOCATED") for name, one in some.items()})
    assert len(worked_out) == before
    queued([*pending[1:], waits("1", node_count=9)], some)
    assert worked_out[before:] == ["1"]


def test_regression_layouts_of_sites_long_gone_are_not_kept_by_what_was_worked_out_for_them() -> None:
    """The nodes that count change whenever another partition has a job that waits: three months are 8 million polls."""
    gc.collect()
    before = sum(isinstance(one, Layout) for one in gc.get_objects())
    for count in range(1, 41):
        queued([waits("1", sched_nodes=("n1",), start_s=NOW_S + 60.0)], nodes(count))
    gc.collect()
    assert sum(isinstance(one, Layout) for one in gc.get_objects()) <= before + 2


def test_no_node_no_job_and_nodes_that_are_not_numbered_raise_nothing() -> None:
    assert queued([], {}) == Queue((), 0)
    assert queued([waits("1")], {}).entries == ()
    odd = waits("1", node_count=-1, time_limit_s=0.0, submit_s=1e18, priority=10**30, user="", cpus=-1)
    assert only(queued([odd], {"n0": node("n0", cpus=0, memory_bytes=0)})).parts[0].need == 1
