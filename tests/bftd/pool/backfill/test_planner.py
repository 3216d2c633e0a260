"""What the copy of Slurm's planner says of small queues."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from bftd.pool.backfill import planner
from bftd.pool.backfill.model import Component, PlannedStart, PlannerOutcome, QueueEntry
from slurm_plugin.read.types import Scheduler
from tests.bftd.pool.backfill.cases import MINUTE, NOW, Cluster, job, nodes, starts
from tests.support.messages import says, wording


def test_a_job_that_fits_gets_its_nodes_by_name() -> None:
    found = Cluster(4, ours=nodes(0, 1)).look(job("a", 3))
    assert found.now == {"a": nodes(0, 1, 2)}
    assert (found.later, found.looked, found.queued, found.cut) == ({}, 1, 1, "")


def test_a_job_does_not_start_where_its_limit_reaches_into_a_plan_before_it() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={600: nodes(1)})
    found = cluster.look(job("first", 2, 60), job("long", 1, 11), job("short", 1, 9))
    assert found.now == {"short": nodes(0)}
    assert starts(found) == {"first": 600, "long": 4200}


def test_a_limit_that_ends_just_where_a_plan_begins_is_too_long_and_a_second_less_is_not() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={600: nodes(1)})
    assert cluster.look(job("first", 2), job("behind", 1, 10)).now == {}
    assert cluster.look(job("first", 2), job("behind", 1, 599 / 60)).now == {"behind": nodes(0)}


def test_plans_begin_and_end_on_whole_steps_rounded_down() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={659: nodes(1)})
    # the plan from 10:59 to 20:59 is reserved from 10:00 to 20:00
    found = cluster.look(job("first", 2, 10), job("before", 1, 10), job("after", 2, 10))
    assert found.now == {}
    assert starts(found) == {"first": 659, "before": 1200, "after": 1800}
    assert cluster.look(job("first", 2, 10), job("short", 1, 9.9)).now == {"short": nodes(0)}


def test_newer_releases_round_the_end_of_a_plan_up() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={659: nodes(1)}, scheduler=Scheduler(newer=True))
    assert starts(cluster.look(job("first", 2, 10), job("after", 2, 10))) == {"first": 659, "after": 1260}


def test_newer_releases_look_at_ends_of_jobs_only_until_they_would_look_next() -> None:
    # all three end in one group; the third one ends when the plan of n0 is over, when Slurm would look again
    cluster = Cluster(5, ready=nodes(0), ends={300: nodes(0), 600: nodes(1), 610: nodes(2), 625: nodes(3)})
    queue = [job("first", 1, 10, allowed=nodes(0, 1)), job("second", 1, 60, allowed=nodes(1, 2, 3))]
    assert starts(cluster.look(*queue))["second"] == 625


def test_a_job_that_starts_is_a_plan_for_the_jobs_behind_it() -> None:
    # its end made one group with that of the job on n1, and the second job was planned for the later one
    cluster = Cluster(2, ready=nodes(0), ends={570: nodes(1)})
    found = cluster.look(job("first", 1, 10), job("second", 1, 5))
    assert found.now == {"first": nodes(0)}
    assert starts(found) == {"second": 570}


def test_plans_are_as_coarse_as_the_site_says() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={659: nodes(1)}, scheduler=Scheduler(resolution_s=30.0))
    assert cluster.look(job("first", 2, 10), job("behind", 1, 10.4)).now == {"behind": nodes(0)}
    cluster = replace(cluster, scheduler=Scheduler(resolution_s=600.0))
    # the last whole ten minutes of the clock before the plan are seven minutes from now
    assert cluster.look(job("first", 2, 10), job("behind", 1, 6.9)).now == {"behind": nodes(0)}
    assert cluster.look(job("first", 2, 10), job("behind", 1, 7)).now == {}


def test_a_plan_is_at_least_one_step_long() -> None:
    cluster = Cluster(1, ready=0, ends={600: nodes(0)})
    assert starts(cluster.look(job("first", 1, 0.5), job("second", 1, 1))) == {"first": 600, "second": 660}


def test_nothing_is_planned_beyond_the_window() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={7200: nodes(1)}, scheduler=Scheduler(window_s=3600.0))
    found = cluster.look(job("far", 2, 60), job("small", 1, 24 * 60))
    assert found.now == {"small": nodes(0)}
    assert starts(found) == {"far": 7200}


def test_a_job_that_starts_counts_as_running_for_those_behind_it() -> None:
    found = Cluster(2).look(job("a", 1, 20), job("b", 2, 10))
    assert found.now == {"a": nodes(0)}
    assert starts(found) == {"b": 1200}


def test_a_job_without_enough_nodes_ever_has_no_plan_and_is_in_nobodys_way() -> None:
    found = Cluster(3).look(job("huge", 4), job("named", required=nodes(7)), job("small", 3))
    assert found == PlannerOutcome({"small": nodes(0, 1, 2)}, {}, 3, 3)


def test_required_nodes_that_are_busy_are_waited_for() -> None:
    found = Cluster(3, ends={600: nodes(2)}).look(job("a", 2, required=nodes(2)), job("b", 2, 5))
    assert found.now == {"b": nodes(0, 1)}
    assert found.later == {"a": PlannedStart(NOW + 600, nodes(0, 2))}


def test_neighbours_are_waited_for() -> None:
    found = Cluster(4, ends={600: nodes(1)}).look(job("a", 3, contiguous=True))
    assert found.later == {"a": PlannedStart(NOW + 600, nodes(0, 1, 2))}


def test_one_kind_of_nodes_must_hold_all_where_kinds_may_not_be_mixed() -> None:
    low, high = nodes(0, 1, 2), nodes(3, 4, 5)
    cluster = Cluster(6, ready=nodes(0, 1, 3, 4), ends={600: nodes(2), 900: nodes(5)})
    assert cluster.look(job("a", 2, either=(high, low))).now == {"a": nodes(3, 4)}
    assert cluster.look(job("a", 3, either=(high, low))).later == {"a": PlannedStart(NOW + 600, low)}
    assert cluster.look(job("a", 4, either=(high, low))) == PlannerOutcome({}, {}, 1, 1)


def test_of_kinds_that_are_free_at_the_same_time_the_first_is_taken() -> None:
    cluster = Cluster(2, ready=0, ends={600: nodes(0, 1)})
    assert cluster.look(job("a", 1, either=(nodes(1), nodes(0)))).later == {"a": PlannedStart(NOW + 600, nodes(1))}


def test_a_reservation_keeps_its_nodes_and_is_looked_behind_to_the_next_step_and_a_second() -> None:
    cluster = Cluster(2, bookings=[(nodes(0), 300, 650)])
    found = cluster.look(job("long", 2, 10), job("short", 1, 4))
    assert found.now == {"short": nodes(0)}
    assert starts(found) == {"long": 661}
    assert cluster.look(job("long", 1, 10)).now == {"long": nodes(1)}


def test_a_job_waits_for_the_end_of_the_last_of_several_reservations() -> None:
    found = Cluster(1, bookings=[(nodes(0), 0, 100), (nodes(0), 200, 400)]).look(job("a", 1, 2))
    assert starts(found) == {"a": 421}


def test_an_end_of_a_plan_before_that_of_the_reservation_is_looked_at_first() -> None:
    planned = job("planned", 1, 4, barred=True, plan_s=NOW + 60, plan=nodes(1))
    found = Cluster(2, bookings=[(nodes(0), 0, 900)]).look(planned, job("b", 1, 5))
    assert found.later == {"b": PlannedStart(NOW + 300, nodes(1))}


def test_a_job_with_a_minimal_limit_is_placed_with_it_and_runs_as_long_as_no_plan_is_in_its_way() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={1815: nodes(1)})
    found = cluster.look(job("first", 2, 60), job("flexible", 1, 60, least=10), job("next", 1, 20))
    assert found.now == {"flexible": nodes(0)}
    # it ends after thirty minutes, and not after its hour or its ten minutes; then the first job has both nodes
    assert starts(found)["next"] == 1800 + 3600
    assert cluster.look(job("first", 2, 60), job("rigid", 1, 60)).now == {}


def test_all_nodes_of_a_job_with_a_minimal_limit_are_free_when_a_plan_needs_one_of_them() -> None:
    cluster = Cluster(3, ready=nodes(0, 2), ends={1815: nodes(1)})
    found = cluster.look(
        job("first", 2, 60, allowed=nodes(0, 1)),
        job("flexible", 2, 60, allowed=nodes(0, 2), least=10),
        job("next", 1, allowed=nodes(2)),
    )
    assert found.now == {"flexible": nodes(0, 2)}
    assert starts(found) == {"first": 1815, "next": 1800}


def test_the_plan_of_a_job_with_a_minimal_limit_is_as_long_as_that() -> None:
    cluster = Cluster(1, ready=0, ends={600: nodes(0)})
    assert starts(cluster.look(job("flexible", 1, 60, least=10), job("next", 1, 10))) == {
        "flexible": 600,
        "next": 1200,
    }


def test_nodes_of_less_weight_are_kept_free_and_planned_first() -> None:
    cluster = Cluster(4, weights=[nodes(2, 3), nodes(0, 1)])
    assert cluster.look(job("a", 2)).now == {"a": nodes(2, 3)}
    busy = Cluster(4, ready=0, ends={600: nodes(0, 1, 2, 3)}, weights=[nodes(2, 3), nodes(0, 1)])
    assert busy.look(job("a", 2)).later == {"a": PlannedStart(NOW + 600, nodes(2, 3))}


def test_all_components_of_a_heterogeneous_job_start_or_none() -> None:
    parts = (Component(nodes(0, 1, 2), 1), Component(nodes(0), 1))
    both = QueueEntry("het", parts, 600.0, 600.0)
    assert Cluster(3).look(both).now == {"het": nodes(0, 1)}
    found = Cluster(3, ends={600: nodes(0)}).look(both, job("long", 2, 60), job("other", 1, 5))
    assert found.now == {"other": nodes(2)}, "each component has a plan that is left free"
    assert found.later["het"] == PlannedStart(NOW + 600, nodes(0, 1))


def test_each_component_is_in_order_but_the_one_with_least_choice_comes_first() -> None:
    parts = (Component(nodes(0, 1), 2), Component(nodes(0, 1, 2, 3), 1), Component(nodes(3), 1))
    assert Cluster(4).look(QueueEntry("het", parts, 600.0, 600.0)).now == {"het": nodes(0, 1, 2, 3)}


def test_a_job_that_fits_on_nodes_in_use_needs_none() -> None:
    cluster = Cluster(3, ready=nodes(2), ends={600: nodes(0, 1)})
    assert cluster.look(job("a", 1, shared=nodes(0))).now == {"a": 0}
    assert cluster.look(job("a", 2, shared=nodes(0))).now == {"a": nodes(2)}
    assert cluster.look(job("a", 3, shared=nodes(0))).now == {}


def test_nodes_in_use_count_only_where_no_plan_needs_them() -> None:
    cluster = Cluster(2, ready=0, ends={600: nodes(0, 1)})
    found = cluster.look(job("first", 2), job("long", 1, 60, shared=nodes(0)), job("short", 1, 5, shared=nodes(0)))
    assert found.now == {"short": 0}


def test_jobs_that_share_sit_together_on_an_idle_node_as_far_as_it_goes() -> None:
    thirds = [job(str(number), together=3) for number in range(4)]
    found = Cluster(3).look(*thirds, job("whole", 1))
    assert found.now == {"0": nodes(0), "1": 0, "2": 0, "3": nodes(1), "whole": nodes(2)}


def test_all_tasks_of_an_array_that_shares_start_on_the_nodes_that_they_fill() -> None:
    found = Cluster(5).look(job("array", together=4, count=10))
    assert found.now["array"].bit_count() == 3


def test_tasks_of_an_array_start_one_after_another_and_the_first_few_of_the_others_are_planned() -> None:
    cluster = Cluster(4, ends={600: nodes(2, 3)}, scheduler=Scheduler(array_most=1))
    found = cluster.look(job("array", 1, 20, count=5), job("other", 1, 20))
    assert found.now == {"array": nodes(0, 1)}
    assert starts(found) == {"array": 600, "other": 600}
    busier = replace(cluster, scheduler=Scheduler(array_most=2)).look(job("array", 1, 20, count=5), job("other", 1, 20))
    assert starts(busier) == {"array": 600, "other": 1200}


def test_an_array_of_a_hundred_thousand_tasks_is_no_more_work_than_its_nodes() -> None:
    found = Cluster(20).look(job("array", 1, count=100_000))
    assert found.now == {"array": (1 << 20) - 1}
    shared = Cluster(20, ready=0, ends={600: -1}).look(job("array", 1, count=100_000, shared=1))
    assert shared.now == {"array": 0}


def test_a_job_in_several_partitions_starts_once() -> None:
    found = Cluster(4).look(job("a", 2, allowed=nodes(0, 1)), job("a", 2, allowed=nodes(2, 3)))
    assert found.now == {"a": nodes(0, 1)}


def test_a_job_in_several_partitions_has_a_plan_in_each_until_it_starts() -> None:
    entries = [job("a", 2, allowed=nodes(0, 1)), job("a", 2, allowed=nodes(2, 3))]
    cluster = Cluster(4, ends={600: nodes(0), 300: nodes(2)})
    found = cluster.look(*entries, job("b", 1, 20))
    assert found.now == {}
    assert starts(found)["a"] == 300
    only = replace(cluster, scheduler=Scheduler(one_plan_a_job=True)).look(*entries, job("b", 1, 20))
    assert only.now == {"b": nodes(3)}
    assert starts(only)["a"] == 600


def test_a_job_that_gets_no_plan_is_in_nobodys_way() -> None:
    cluster = Cluster(2, ready=nodes(0), ends={600: nodes(1)})
    found = cluster.look(job("young", 2, reserves=False), job("b", 1, 60))
    assert (found.now, found.later) == ({"b": nodes(0)}, {})
    assert Cluster(2).look(job("young", 2, reserves=False)).now == {"young": nodes(0, 1)}


def test_of_a_job_that_cannot_start_only_the_shown_plan_counts() -> None:
    plan = {"plan_s": NOW + 300, "plan": nodes(0)}
    found = Cluster(2).look(job("barred", 2, barred=True, **plan), job("b", 1, 10), job("c", 1, 4))
    assert found.now == {"b": nodes(1), "c": nodes(0)}
    assert Cluster(2, backed_off={"a"}).look(job("a", 2, **plan), job("b", 2, 10)).now == {}
    assert Cluster(2, backed_off={"a"}).look(job("a", 2), job("b", 2, 10)).now == {"b": nodes(0, 1)}


def test_a_shown_plan_is_kept_where_the_copy_finds_none() -> None:
    found = Cluster(2).look(job("odd", 3, plan_s=NOW + 300, plan=nodes(0)), job("b", 2, 10), job("c", 1, 10))
    assert found.now == {"c": nodes(1)}


def test_a_job_is_given_the_nodes_that_it_would_have_without_pilots() -> None:
    cluster = Cluster(6, ready=nodes(0, 1, 2, 4, 5), ends={600: nodes(3)}, ours=nodes(0, 1, 2, 4))
    assert cluster.look(job("a", 2)).now == {"a": nodes(4, 5)}
    assert cluster.look(job("a", 3), job("b", 2)).now == {"a": nodes(0, 1, 2), "b": nodes(4, 5)}
    assert cluster.look(job("a", 1)).now == {"a": nodes(5)}, "an idle node suffices"


def test_a_job_keeps_the_nodes_that_are_kept_for_it_while_they_suffice() -> None:
    cluster = Cluster(4, ours=nodes(0, 1, 3), kept={"a": nodes(1), "b": nodes(0, 2)})
    assert cluster.look(job("a", 1), job("b", 2)).now == {"a": nodes(1), "b": nodes(0, 2)}
    assert cluster.look(job("a", 1), job("b", 3)).now == {"a": nodes(1), "b": nodes(0, 2, 3)}


def test_the_next_look_is_only_where_nodes_of_the_partition_become_free() -> None:
    cluster = Cluster(3, ready=nodes(0, 2), ends={3600: nodes(1)})
    other = job("other", 1, 5, allowed=nodes(2), barred=True, plan_s=NOW + 60, plan=nodes(2))
    waits = job("waits", 2, 10, allowed=nodes(0, 1), within=nodes(0, 1))
    assert starts(cluster.look(other, waits)) == {"waits": 3600}


@pytest.mark.parametrize("limit", [0.0, -5.0, inf, nan, 1e300])
@pytest.mark.parametrize("least", [0.0, -5.0, inf, nan, 60.0])
def test_times_that_make_no_sense_are_no_error(limit: float, least: float) -> None:
    odd = QueueEntry("odd", (Component(-1, 1),), limit, least, plan_s=nan, plan=-1)
    later = QueueEntry("later", (Component(-1, 3),), limit, least, plan_s=inf, plan=-1)
    cluster = Cluster(3, ready=nodes(0), ends={-100: nodes(1), inf: nodes(2), nan: nodes(2)})
    cluster.bookings = [(nodes(1), -inf, inf), (nodes(1), 10, 5), (-1, nan, nan)]
    for scheduler in (Scheduler(), Scheduler(resolution_s=nan, window_s=-1.0), Scheduler(resolution_s=inf)):
        found = replace(cluster, scheduler=scheduler).look(later, odd, later, job("b", 1, 10))
        assert set(found.now) <= {"odd", "b"}
        assert (found.looked, found.queued) == (4, 4)


def test_requests_that_make_no_sense_are_no_error() -> None:
    queue = [
        job("none", 0),
        job("negative", -3, minutes=5),
        job("empty", 1, allowed=0),
        job("outside", 1, allowed=nodes(40)),
        job("required", 1, required=-1),
        job("huge", 10**9),
        job("tasks", 1, count=-1),
        QueueEntry("partless", (), 60.0, 60.0),
        job("nothing", 1, either=(0,)),
        job("together", 1, together=0),
        job("crowd", 1, together=10**12),
    ]
    found = Cluster(4).look(*queue)
    assert set(found.now) == {"none", "negative", "together", "crowd"}
    assert Cluster(0).look(*queue).now == {}
    assert simulated_nothing() == PlannerOutcome()


def simulated_nothing() -> PlannerOutcome:
    return Cluster(4).look()


def test_work_is_bounded_and_the_outcome_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(4, ready=nodes(0), ends={600: nodes(1), 900: nodes(2), 1200: nodes(3)})
    queue = [job(str(number), 2, 10) for number in range(50)]
    assert cluster.look(*queue).cut == ""
    monkeypatch.setattr(planner, "_PLANS_WORK", 200)
    found = cluster.look(*queue, job("small", 1, 5))
    assert found.now == {"small": nodes(0)}, "what could start now is still seen"
    assert says(found.cut, "pool.planner.plans_for_some")
    assert "of 51 waiting jobs" in found.cut
    monkeypatch.setattr(planner, "_MOST_WORK", 200)
    found = cluster.look(*queue)
    assert found.looked < found.queued == 50
    assert says(found.cut, "pool.queue.cut_by_time", index=found.looked, waits=50)


def test_an_array_that_never_ends_ends_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_MOST_WORK", 5_000)
    found = Cluster(4).look(job("crowd", 1, together=10**12, count=10**9))
    assert found.now == {"crowd": nodes(0)}
    assert found.cut == wording(
        "pool.planner.cut_by_time", looked=1, queued=1, tasks=wording("pool.planner.not_all_tasks")
    )


def test_the_shown_plan_counts_for_jobs_whose_own_is_no_longer_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_PLANS_WORK", -1)
    cluster = Cluster(2, ready=nodes(0), ends={600: nodes(1)})
    shown = job("first", 2, 60, plan_s=NOW + 10 * MINUTE, plan=nodes(0, 1))
    found = cluster.look(shown, job("long", 1, 60), job("short", 1, 9))
    assert (found.now, found.later) == ({"short": nodes(0)}, {})
