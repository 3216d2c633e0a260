"""Where the time of a resize goes: the parts are measured by one clock each and are never more than the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol.reports import ProgressReport, ResizeReport
from elastic.driver.progress.reports import TrainerProgress
from elastic.driver.progress.resize_times import Parts, ResizeTimes
from tests.elastic.fakes import reports_of

pytestmark = pytest.mark.slow


def asked(graceful: bool = True, asked_s: float = 50.0, stored_s: float = 53.0, began_s: float = 55.0) -> ResizeTimes:
    """A resize on its way: workers were asked to save, the checkpoint was stored, and new workers began."""
    costs = ResizeTimes(saves_at_resize=True)
    costs.asked(asked_s, graceful=graceful)
    costs.stored(stored_s)
    costs.began(began_s - 0.5)
    costs.began(began_s)  # the last of them
    return costs


def test_a_resize_of_bftds_own_is_saving_coming_together_and_loading() -> None:
    costs = asked()
    costs.saved(2.5, 14_000_000_000)
    assert costs.parts(12.5, {"load_s": 7.0}) == Parts(3.0, 2.0, 7.0, 14_000_000_000)
    # the half second that is left is the way to the first step; and nothing of it is left for the next resize
    assert costs.parts(1.0, {}) == Parts(0.0, None, None, 14_000_000_000)


def test_where_slurm_took_nodes_nothing_is_saved() -> None:
    assert asked(graceful=False).parts(12.5, {"load_s": 7.0}) == Parts(0.0, 5.0, 7.0, None)


def test_workers_that_keep_their_state_in_memory_only_come_together_and_get_it() -> None:
    assert ResizeTimes().parts(2.0, {"load_s": 0.5}) == Parts(0.0, 1.5, 0.5, None)


def test_what_was_trained_until_the_save_is_no_part_of_the_stall() -> None:
    # three seconds from the question to the stored checkpoint, but training went on for two of them
    assert asked().parts(10.0, {"load_s": 7.0}) == Parts(1.0, 2.0, 7.0, None)


def test_workers_that_were_never_seen_leave_the_parts_unknown() -> None:
    costs = ResizeTimes()
    costs.asked(50.0, graceful=True)
    costs.stored(53.0)
    assert costs.parts(12.5, {"load_s": 7.0}) == Parts(None, None, 7.0, None)


@pytest.mark.parametrize("told", [None, "1", -1.0, float("nan"), float("inf"), True, [1.0]])
def test_a_worker_that_tells_nonsense_of_its_start_is_not_believed(told: Any) -> None:
    assert asked().parts(12.5, {"load_s": told, "load_bytes": told}) == Parts(3.0, 2.0, None, None)


def test_how_long_saves_take_is_told_where_each_resize_has_one() -> None:
    costs, horovod = ResizeTimes(saves_at_resize=True), ResizeTimes(saves_at_resize=False)
    for each in (costs, horovod):
        assert each.save_s is None
        for took_s in (3.0, 60.0, 3.5):
            each.saved(took_s, 10)
    assert costs.save_s == 3.5
    assert (horovod.save_s, horovod.state_bytes) == (None, 10)


TIMES = st.floats(0, 1e6)


@given(TIMES, TIMES, TIMES, TIMES, TIMES, st.booleans())
def test_the_parts_are_never_more_than_the_stall(
    stall_s: float, load_s: float, began_s: float, save_s: float, rendezvous_s: float, graceful: bool
) -> None:
    costs = asked(graceful, began_s, began_s + save_s, began_s + save_s + rendezvous_s)
    parts = costs.parts(stall_s, {"load_s": load_s})
    told = [part for part in (parts.save_s, parts.rendezvous_s, parts.load_s) if part is not None]
    assert all(part >= 0 for part in told)
    assert sum(told) <= stall_s * (1 + 1e-9)


def test_a_resize_is_told_with_its_parts_and_the_progress_with_what_is_known_of_the_checkpoint() -> None:
    progress = TrainerProgress(resize_times=asked())
    message = {"first": True, "step": 5, "samples": 50, "rank": 0, "size": 2, "loss": None, "saved_step": 5}
    message |= {"saved_samples": 50, "at_s": 100.0}
    progress.report(message)
    progress.resize_times = asked()
    progress.resize_times.saved(2.5, 10)
    reports = progress.report(message | {"step": 6, "size": 4, "at_s": 112.5, "costs": {"load_s": 7.0}})
    [resize] = reports_of(reports, ResizeReport)
    assert (resize.kind, resize.stall_s) == ("up", 12.5)
    assert (resize.save_s, resize.rendezvous_s, resize.load_s, resize.state_bytes) == (3.0, 2.0, 7.0, 10)
    [told] = reports_of(reports, ProgressReport)
    assert (told.save_s, told.state_bytes) == (2.5, 10)


def test_a_start_and_a_resume_leave_nothing_for_the_next_resize() -> None:
    progress = TrainerProgress(resize_times=asked())
    message = {"first": True, "step": 5, "samples": 50, "rank": 0, "size": 2, "loss": None, "saved_step": 5}
    message |= {"saved_samples": 50, "at_s": 100.0}
    assert not reports_of(progress.report(message), ResizeReport)
    [resize] = reports_of(progress.report(message | {"step": 6, "size": 4, "at_s": 102.0}), ResizeReport)
    assert (resize.save_s, resize.rendezvous_s, resize.load_s) == (0.0, None, None)
