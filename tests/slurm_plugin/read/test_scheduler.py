"""How a site's backfill scheduler works, as scontrol and sdiag show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.read import scheduler, sdiag
from slurm_plugin.read.sdiag import Load
from slurm_plugin.read.settings import parse_config
from slurm_plugin.read.types import NO_SCHEDULER, Depth, Scheduler

ASSETS = Path(__file__).parents[1] / "site" / "assets"
CYCLE = Load(last_cycle_s=0.5, cycle_begun_s=1000.0, last_depth=30)


def of(parameters: str) -> Scheduler:
    return scheduler.settings({"SchedulerParameters": parameters})


@pytest.mark.parametrize(
    ("release", "rules"),
    [("22.05", ()), ("24.11", ("newer",)), ("26.05", ("newer", "by_chosen_ends", "one_by_order"))],
)
def test_a_recorded_stock_configuration_has_slurms_defaults(release: str, rules: tuple[str, ...]) -> None:
    config = parse_config((ASSETS / release / "stock" / "config.txt").read_text())
    assert scheduler.settings(config) == replace(NO_SCHEDULER, read=True, **dict.fromkeys(rules, True))


@pytest.mark.parametrize("text", ["", "unknown", "9.12.1", "22.05.8", "23.11.4"])
def test_of_a_release_of_which_it_is_not_known_plans_end_early_and_more_jobs_fit(text: str) -> None:
    assert not scheduler.settings({"SLURM_VERSION": text}).newer


def test_every_setting_is_read_in_its_own_unit() -> None:
    found = of(
        "batch_sched_delay=3,bf_interval=45,bf_resolution=300,bf_window=2880,bf_max_job_test=1000,bf_max_job_user=10,"
        "bf_max_job_part=20,bf_max_job_user_part=5,bf_max_job_array_resv=3,bf_one_resv_per_job,bf_min_age_reserve=600,"
        "bf_min_prio_reserve=7,bf_max_time=90"
    )
    assert found == Scheduler(
        read=True,
        interval_s=45.0,
        resolution_s=300.0,
        window_s=2880 * 60.0,
        depth=1000,
        depth_user=10,
        depth_partition=20,
        depth_user_partition=5,
        array_most=3,
        one_plan_a_job=True,
        reserve_age_s=600.0,
        reserve_priority=7,
        max_time_s=90.0,
    )


def test_a_cycle_may_last_as_long_as_the_interval_unless_it_is_set() -> None:
    assert of("bf_interval=5").max_time_s == 5.0


@pytest.mark.parametrize(
    "text", ["bf_interval=-1", "bf_interval=soon", "bf_interval", "bf_window=0", "bf_max_job_test="]
)
def test_a_value_that_makes_no_sense_is_the_default(text: str) -> None:
    assert of(text) == replace(NO_SCHEDULER, read=True)


@given(st.text())
def test_no_text_of_parameters_is_an_error(text: str) -> None:
    assert of(text).interval_s >= 1.0


def test_the_end_of_the_last_cycle_is_its_beginning_and_its_work() -> None:
    found = scheduler.with_load(NO_SCHEDULER, {}, CYCLE)
    assert (found.cycle_s, found.cycled_s) == (0.5, 1000.5)


def test_what_a_cycle_slept_is_worked_out_from_the_settings_as_sdiag_leaves_it_out() -> None:
    slow = {"SchedulerParameters": "bf_interval=30,bf_yield_interval=1,bf_yield_sleep=1000000"}
    found = scheduler.with_load(scheduler.settings(slow), slow, replace(CYCLE, last_depth=12))
    assert (found.cycle_s, found.cycled_s) == (12.5, 1012.5)  # at each of the jobs that it looked at
    bounded = scheduler.with_load(scheduler.settings(slow), slow, replace(CYCLE, last_depth=500))
    assert bounded.cycle_s == 30.5  # bf_max_time ends it


def test_while_a_cycle_works_it_is_taken_to_look_as_deep_as_most() -> None:
    slow = {"SchedulerParameters": "bf_yield_interval=1,bf_yield_sleep=1000000"}
    load = replace(CYCLE, last_depth=1, mean_depth=20, works=True)
    assert scheduler.with_load(NO_SCHEDULER, slow, load).cycle_s == 20.5


def test_regression_a_cycle_that_worked_was_taken_to_last_as_long_as_the_one_before_it() -> None:
    found = scheduler.with_load(NO_SCHEDULER, {}, replace(CYCLE, works=True))
    assert (found.cycled_s, found.due_s) == (None, None), "it may be shorter, and the next one begin sooner"


def test_a_cycle_was_over_when_sdiag_showed_it_however_long_it_may_have_slept() -> None:
    slow = {"SchedulerParameters": "bf_yield_interval=1,bf_yield_sleep=1000000"}
    found = scheduler.with_load(NO_SCHEDULER, slow, replace(CYCLE, last_depth=12, shown_s=1005.0))
    assert (found.cycle_s, found.cycled_s) == (12.5, 1005.0)


@pytest.mark.parametrize("ahead_s", [-200.0, -2.0, 2.0, 200.0])
@pytest.mark.parametrize("second", [0.0, 0.4, 0.99])
def test_regression_a_controller_with_another_clock_had_pilots_leave_late(ahead_s: float, second: float) -> None:
    now_s = 2000.0 + second  # by this host's clock; the cycle ended 10 s ago
    theirs = now_s + ahead_s
    load = replace(CYCLE, cycle_begun_s=float(int(theirs - 10.5)), last_cycle_s=0.5, shown_s=float(int(theirs)))
    found = scheduler.with_load(NO_SCHEDULER, {}, load, (now_s - 0.1, now_s + 0.1))
    assert found.cycled_s is not None
    assert now_s - 12.2 <= found.cycled_s <= now_s - 10.0
    assert max(0.0, -ahead_s) <= found.behind_s <= max(0.0, -ahead_s) + 1.2


@pytest.mark.parametrize("ahead_s", [0.0, 86400.0, -86400.0])
def test_a_clock_that_may_be_right_or_cannot_be_a_controllers_changes_nothing(ahead_s: float) -> None:
    load = replace(CYCLE, shown_s=1003.0)
    found = scheduler.with_load(NO_SCHEDULER, {}, load, (1003.3 - ahead_s, 1003.4 - ahead_s))
    assert found == scheduler.with_load(NO_SCHEDULER, {}, load)


def reached(*loads: Load) -> tuple[int, ...]:
    """How deep the cycles were that are known after these answers of sdiag."""
    found = NO_SCHEDULER
    for load in loads:
        found = scheduler.with_load(found, {}, load)
    return tuple(one.looked for one in found.depths)


def cycle(begun_s: float, depth: int, **fields: Any) -> Load:
    return replace(CYCLE, **{"cycle_begun_s": begun_s, "last_depth": depth, "queue_length": 40, **fields})


def test_the_last_three_cycles_tell_how_deep_they_came_each_once() -> None:
    assert reached(*(cycle(1000.0 + 30 * index, index) for index in range(5))) == (2, 3, 4)
    assert reached(cycle(1000.0, 2), cycle(1000.0, 2), cycle(1030.0, 3)) == (2, 3)


def test_a_cycle_at_work_counts_only_where_it_is_the_deepest_so_far() -> None:
    assert reached(cycle(1000.0, 5), cycle(1030.0, 2, works=True)) == (5,)
    assert reached(cycle(1000.0, 5), cycle(1030.0, 9, works=True)) == (5, 9)
    assert reached(cycle(1000.0, 5), cycle(1030.0, 9, works=True), cycle(1030.0, 12)) == (5, 12)


def test_cycles_of_long_ago_and_those_before_sdiag_was_silent_tell_nothing() -> None:
    assert reached(cycle(1000.0, 5), cycle(5000.0, 6)) == (6,)
    assert reached(cycle(1000.0, 5, shown_s=5000.0)) == ()
    found = scheduler.with_load(scheduler.with_load(NO_SCHEDULER, {}, cycle(1000.0, 5)), {}, None)
    assert found.depths == ()


@pytest.mark.parametrize(
    ("depths", "deepest"),
    [
        (((2, 40), (3, 40)), (3, 40)),
        (((2, 40),), None),
        (((2, 40), (40, 40)), None),
        (((2, 40), (40, 40), (2, 40)), (40, 40)),
        (((5, 5), (2, 40), (2, 40)), (5, 40)),  # the queue was short, and told no more than that
        (((5, 5), (5, 5)), None),
        ((), None),
    ],
)
def test_how_deep_cycles_come_is_known_where_two_of_the_last_ones_ended_early(
    depths: tuple[tuple[int, int], ...], deepest: tuple[int, int] | None
) -> None:
    found = Scheduler(depths=tuple(Depth(30.0 * index, *depth) for index, depth in enumerate(depths))).reached
    assert (found and (found.looked, found.queued)) == deepest


def test_a_long_cycle_sleeps_once_in_two_seconds_by_default() -> None:
    found = scheduler.with_load(NO_SCHEDULER, {}, replace(CYCLE, last_cycle_s=9.0, last_depth=400))
    assert found.cycle_s == 11.0


@pytest.mark.parametrize("load", [None, Load(), Load(cycle_begun_s=5.0)])
def test_without_figures_of_a_cycle_nothing_is_known_of_it(load: Load | None) -> None:
    before = scheduler.with_load(NO_SCHEDULER, {}, CYCLE)
    found = scheduler.with_load(before, {}, load)
    assert (found.cycle_s, found.cycled_s) == (None, None)


def test_settings_read_again_keep_what_is_known_of_the_last_cycle() -> None:
    before = scheduler.with_load(of("bf_interval=30"), {}, CYCLE)
    found = scheduler.settings({"SchedulerParameters": "bf_interval=10"}, before)
    assert (found.interval_s, found.cycle_s, found.cycled_s) == (10.0, 0.5, 1000.5)


def test_a_recorded_sdiag_tells_when_the_last_cycle_began_and_how_deep_it_looked() -> None:
    load = sdiag.parse((ASSETS / "22.05" / "recommended" / "sdiag.txt").read_text())
    assert load is not None
    assert (load.cycle_begun_s, load.last_cycle_s, load.last_depth) == (1795315108.0, 133e-6, 2)


def test_a_controller_without_a_cycle_yet_shows_no_time_of_one() -> None:
    load = sdiag.parse("sdiag output at x (5)\nBackfilling stats\n\tTotal cycles: 0\n\tLast cycle when: N/A\n")
    assert load is not None
    assert (load.cycle_begun_s, load.works) == (None, False)


def test_a_cycle_that_works_is_told_by_its_warning() -> None:
    load = sdiag.parse(
        "sdiag output at x (5)\nBackfilling stats (WARNING: data obtained in the middle of backfilling execution.)\n"
        "\tLast cycle when: Sat Nov 21 10:00:00 2026 (1795255200)\n\tLast cycle: 5\n"
    )
    assert load is not None
    assert (load.cycle_begun_s, load.works) == (1795255200.0, True)


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_regression_figures_that_nothing_can_hold_broke_the_poll(digits: int) -> None:
    many = "9" * digits
    assert of(f"bf_interval={many},bf_resolution={many},bf_max_job_test={many}") == replace(NO_SCHEDULER, read=True)
    load = sdiag.parse(
        f"sdiag output at Mon (1700000000)\nMain schedule statistics\n\tMax cycle: {many}\n"
        f"Backfilling stats\n\tLast cycle when: Mon ({many})\n\tLast cycle: {many}\n"
    )
    assert scheduler.with_load(NO_SCHEDULER, {}, load) == NO_SCHEDULER
