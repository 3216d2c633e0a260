"""What the driver makes of the workers' reports: nothing counts twice or goes back, and a resize has its price."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol.reports import ProgressReport, Report, ResizeReport
from elastic.driver.progress.reports import TrainerProgress
from elastic.link.wire import Message
from tests.elastic.fakes import reports_of

pytestmark = pytest.mark.slow


def told(
    progress: TrainerProgress, step: int, at_s: float, heard_s: float | None = None, **fields: Any
) -> list[Report]:
    """Rank 0 reports `step`; every step has 10 samples unless the test says otherwise, all of them saved."""
    message: Message = {"first": False, "samples": step * 10, "rank": 0, "size": 1, "loss": None, "steps_lost": 0}
    message |= {"step": step, "at_s": at_s, "saved_step": step, "saved_samples": step * 10, **fields}
    return progress.report(message, heard_s)


def test_regression_after_the_clock_was_set_back_no_speed_was_measured_until_it_had_caught_up() -> None:
    progress = running(2, steps=10)
    assert progress.samples_per_s == 10.0
    for step in range(11, 21):
        told(progress, step, 2.0 * step, size=2)
    assert progress.samples_per_s == 5.0, "a step takes two seconds now"


def test_regression_a_clock_that_was_set_forwards_made_a_resize_an_hour_long() -> None:
    progress = TrainerProgress()
    for step in range(1, 6):
        told(progress, step, 100.0 + step, heard_s=7.0 + step, first=step == 1, size=2)
    [report] = resizes(told(progress, 6, 3600.0 + 109.0, heard_s=16.0, first=True, size=4, previous_s=105.0))
    # four seconds passed, one of which the step takes anyway
    assert report.stall_s == 3.0
    # and one that was really suspended for an hour is none
    [report] = resizes(told(progress, 7, 7300.0, heard_s=16.0 + 3591.0, first=True, size=2, previous_s=3709.0))
    assert report.stall_s == 3590.0


def resizes(reports: list[Report]) -> list[ResizeReport]:
    return reports_of(reports, ResizeReport)


def only_progress(reports: list[Report]) -> ProgressReport:
    [report] = reports
    assert isinstance(report, ProgressReport)
    return report


def running(size: int, steps: int = 5, step_s: float = 1.0) -> TrainerProgress:
    """A trainer that made `steps` steps from second 100 on."""
    progress = TrainerProgress()
    for step in range(1, steps + 1):
        told(progress, step, 100 + step * step_s, first=step == 1, size=size)
    return progress


def test_the_first_start_is_no_resize() -> None:
    progress = TrainerProgress()
    assert resizes(told(progress, 1, 100.0, first=True, size=3)) == []
    assert (progress.resizes, progress.steps_lost, progress.nodes) == (0, 0, 3)


def test_growing_costs_the_gap_less_the_step_that_would_have_been_done_anyway() -> None:
    progress = running(2)
    [report] = resizes(told(progress, 6, 109.0, first=True, size=4))
    assert (report.kind, report.from_nodes, report.to_nodes) == ("up", 2, 4)
    assert report.stall_s == 3.0
    assert (report.steps_lost, progress.steps_lost, progress.resizes) == (0, 0, 1)


def test_shrinking_without_a_loss_is_told_as_down() -> None:
    progress = running(4)
    [report] = resizes(told(progress, 6, 106.5, first=True, size=1))
    assert (report.kind, report.stall_s, report.steps_lost) == ("down", 0.5, 0)


def test_a_crash_counts_the_steps_since_the_last_save_and_the_time_since_the_last_step() -> None:
    progress = running(3, steps=8)
    progress.broke(9, 109.0)
    [report] = resizes(told(progress, 6, 112.0, first=True, size=2, steps_lost=3))
    # Step 9 was done by the worker that died; 6, 7, 8 and 9 are done again.
    assert (report.kind, report.steps_lost, report.stall_s) == ("crash", 4, 2.0)
    assert progress.steps_lost == 4


def test_a_crash_that_changes_no_size_is_still_told() -> None:
    progress = running(3)
    progress.broke(5, 105.0)
    [report] = resizes(told(progress, 6, 107.0, first=True, size=3))
    assert (report.kind, report.from_nodes, report.to_nodes) == ("crash", 3, 3)
    assert progress.resizes == 0


def test_the_resize_after_a_crash_is_an_ordinary_one_again() -> None:
    progress = running(3)
    progress.broke(5, 105.0)
    told(progress, 6, 107.0, first=True, size=2)
    [report] = resizes(told(progress, 7, 108.0, first=True, size=3))
    assert report.kind == "up"


def test_a_suspension_costs_the_steps_that_were_not_saved_and_a_resumption_is_no_resize() -> None:
    progress = running(2, steps=7)
    progress.suspended(5)
    assert (progress.suspends, progress.steps_lost, progress.samples_per_s) == (1, 2, 0.0)
    assert resizes(told(progress, 6, 500.0, first=True, size=4)) == []
    assert progress.steps_lost == 2


def test_a_suspension_at_a_step_boundary_loses_nothing() -> None:
    progress = running(2, steps=7)
    progress.suspended(7)
    told(progress, 8, 500.0, first=True, size=4)
    assert progress.steps_lost == 0


def test_several_workers_a_node_make_one_node() -> None:
    progress = TrainerProgress(workers_per_node=4)
    told(progress, 1, 100.0, first=True, size=8)
    assert progress.nodes == 2
    [report] = resizes(told(progress, 2, 101.0, first=True, size=12))
    assert (report.from_nodes, report.to_nodes) == (2, 3)


def test_nodes_with_different_numbers_of_workers_are_counted_as_nodes() -> None:
    progress = TrainerProgress(workers_per_node=1)
    told(progress, 1, 100.0, first=True, size=3, nodes=2)
    assert only_progress(told(progress, 2, 101.0, size=3, nodes=2)).nodes == 2
    [report] = resizes(told(progress, 3, 102.0, first=True, size=7, nodes=3))
    assert (report.from_nodes, report.to_nodes) == (2, 3)


def test_throughput_is_measured_at_one_size_and_after_it_settled() -> None:
    progress = TrainerProgress()
    told(progress, 1, 100.0, first=True, size=1, samples=0)
    told(progress, 2, 100.5, samples=1000)
    assert progress.samples_per_s == 0.0
    told(progress, 3, 102.0, samples=2000)
    report = only_progress(told(progress, 4, 104.0, samples=2100))
    assert (report.samples_per_s, report.window_s) == (50.0, 2.0)
    told(progress, 5, 105.0, first=True, size=2, samples=2150)
    told(progress, 6, 107.0, size=2, samples=2350)
    report = only_progress(told(progress, 7, 109.0, size=2, samples=2550))
    assert report.samples_per_s == 100.0


def test_only_what_is_saved_is_told_as_progress() -> None:
    progress = TrainerProgress()
    report = only_progress(told(progress, 9, 100.0, first=True, saved_step=5, saved_samples=50))
    assert (report.step, report.samples) == (5, 50)
    progress.saved(7, 70)
    assert (progress.step, progress.samples) == (7, 70)
    progress.saved(6, 60)
    told(progress, 10, 101.0, saved_step=5, saved_samples=50)
    assert (progress.step, progress.samples) == (7, 70)


def test_the_last_steps_of_a_script_that_ended_well_count_once_training_is_complete() -> None:
    progress = running(2)
    told(progress, 7, 107.0, size=2, saved_step=5, saved_samples=50, final=True)
    assert (progress.step, progress.samples) == (5, 50)
    progress.completed()
    assert (progress.step, progress.samples) == (7, 70)
    assert [report.step for report in reports_of(progress.untold(108.0), ProgressReport)] == [7]


def test_regression_steps_of_a_rank_0_that_ended_before_another_failed_counted_though_nobody_had_saved_them() -> None:
    progress = running(2)
    told(progress, 7, 107.0, size=2, saved_step=5, saved_samples=50, final=True)
    told(progress, 6, 110.0, size=2, saved_step=5, saved_samples=50, first=True)
    progress.completed()
    assert (progress.step, progress.steps_lost) == (5, 2)


def test_the_first_and_the_last_loss_are_remembered() -> None:
    progress = TrainerProgress()
    told(progress, 1, 100.0, first=True, loss=2.0)
    told(progress, 2, 101.0, loss=None)
    told(progress, 3, 102.0, loss=1.0)
    assert (progress.first_loss, progress.loss) == (2.0, 1.0)


def test_other_ranks_tell_only_what_rank_0_cannot_know() -> None:
    progress = running(2)
    assert told(progress, 6, 106.0, first=True, rank=1, size=4) == []
    assert (progress.size, progress.step) == (2, 5)


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 5)),
        st.tuples(st.just("resize"), st.integers(1, 6)),
        st.tuples(st.just("crash"), st.integers(1, 6)),
        st.tuples(st.just("suspend"), st.integers(1, 6)),
    ),
    max_size=25,
)


@given(happenings, st.integers(1, 4))
def test_whatever_happens_progress_never_goes_back_and_every_step_done_twice_is_lost_once(
    happenings: list[tuple[str, int]], save_every: int
) -> None:
    progress, at_s = TrainerProgress(), 100.0
    step = saved = done = 0
    size, first = 1, True
    before = (0, 0, 0)
    for kind, count in happenings:
        if kind == "steps":
            for _ in range(count):
                step, done, at_s = step + 1, done + 1, at_s + 1
                saved = step if step % save_every == 0 else saved
                told(progress, step, at_s, first=first, size=size, saved_step=saved, saved_samples=saved * 10)
                first = False
                now = (progress.step, progress.samples, progress.steps_lost)
                assert all(new >= old for new, old in zip(now, before, strict=True))
                before = now
        else:
            size, first = count, True
            if kind == "crash":
                progress.broke(step, at_s)
                step = saved
            elif kind == "suspend":
                progress.suspended(saved)
                step = saved
    # What was thrown away in the end and not done again yet is seen only when it is.
    if not first:
        assert done == step + progress.steps_lost
    assert progress.step == saved


def test_nodes_of_unequal_size_are_counted_by_those_who_train_on_them() -> None:
    progress = TrainerProgress(workers_per_node=4)
    told(progress, 1, 100.0, first=True, size=12, nodes=2)
    assert progress.nodes == 2
    told(progress, 2, 101.0, size=12)
    [report] = resizes(told(progress, 3, 105.0, first=True, size=20, nodes=3))
    assert (report.from_nodes, report.to_nodes, report.kind) == (2, 3, "up")
    # As many workers on fewer nodes is a resize too.
    [report] = resizes(told(progress, 4, 109.0, first=True, size=20, nodes=2))
    assert (report.from_nodes, report.to_nodes, report.kind) == (3, 2, "down")
    assert only_progress(told(progress, 5, 110.0, size=20)).nodes == 2


def test_how_many_steps_there_are_in_all_and_how_many_a_second_go_with_the_progress() -> None:
    progress = running(2, steps=10)
    assert only_progress(told(progress, 11, 111.0, size=2)).total_steps is None, "an older script does not tell"
    present = only_progress(told(progress, 12, 112.0, size=2, saved_step=5, total_steps=900))
    assert (present.total_steps, present.steps_per_s, present.live_step, present.step) == (900, 1.0, 12, 11)
    assert only_progress(told(progress, 13, 113.0, size=2)).total_steps == 900
    assert only_progress(told(progress, 14, 114.0, size=2, total_steps=10**16)).total_steps is None
    assert progress.steps_per_s == 1.0
    told(progress, 15, 115.0, first=True, size=4)
    assert progress.steps_per_s == 0.0, "at another size it is not known yet"
