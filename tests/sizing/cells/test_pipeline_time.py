"""The latency formula by hand, and against a simulation of every micro-batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.cells.pipeline_time import Hiding, StageTimes, iteration_s, reduce_s
from sizing.step_time.datasheet import BACKWARD

pytestmark = pytest.mark.slow

SECONDS = st.floats(0.0, 10.0)
STAGES = st.lists(
    st.builds(
        StageTimes,
        work_s=SECONDS,
        transfer_s=SECONDS,
        bucket_s=SECONDS,
        buckets=st.integers(0, 5),
        update_s=SECONDS,
    ),
    min_size=1,
    max_size=5,
).map(lambda stages: [replace(stages[0], transfer_s=0.0), *stages[1:]])


def gpipe_s(works: list[float], micro_batches: int) -> float:
    """All forward passes, then all backward passes, each as soon as it can be; transfers take no time."""
    stages = range(len(works))
    done = [[0.0] * micro_batches for _ in stages]
    free = [0.0 for _ in stages]
    for stage in stages:
        for micro in range(micro_batches):
            ready = done[stage - 1][micro] if stage else 0.0
            free[stage] = done[stage][micro] = max(free[stage], ready) + (1 - BACKWARD) * works[stage]
    back = [[0.0] * micro_batches for _ in stages]
    for stage in reversed(stages):
        for micro in range(micro_batches):
            ready = back[stage + 1][micro] if stage + 1 < len(works) else 0.0
            free[stage] = back[stage][micro] = max(free[stage], ready) + BACKWARD * works[stage]
    return max(free)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), st.integers(1, 12))
def test_a_pipeline_takes_what_a_simulation_of_gpipe_takes(works: list[float], micro_batches: int) -> None:
    stages = [StageTimes(work_s) for work_s in works]
    simulated_s = gpipe_s(works, micro_batches)
    assert iteration_s(stages, micro_batches, "buckets") == pytest.approx(simulated_s)


def test_the_papers_formula_with_its_transfers() -> None:
    stages = [StageTimes(1.0), StageTimes(2.0, transfer_s=0.5), StageTimes(1.5, transfer_s=0.25)]
    assert iteration_s(stages, 12, "buckets") == pytest.approx(1 + 2.5 + 1.75 + 11 * 2)
    # nothing hides: the second stage also sends on
    assert iteration_s(stages, 12, "none") == pytest.approx(1 + 2.5 + 1.75 + 11 * 2.75)


def test_the_gradients_all_reduce_is_paid_once_however_many_micro_batches_there_are() -> None:
    stage = StageTimes(1.0, bucket_s=0.5, buckets=4, update_s=0.1)
    for micro_batches in (1, 8):
        assert iteration_s([stage], micro_batches, "none") == pytest.approx(micro_batches + 4 * 0.5 + 0.1)


def test_buckets_hide_behind_the_backward_pass_and_the_last_one_never() -> None:
    quick = StageTimes(3.0, bucket_s=0.1, buckets=4)
    assert reduce_s(quick, "buckets") == pytest.approx(0.1)
    slow = StageTimes(3.0, bucket_s=2.0, buckets=4)
    assert reduce_s(slow, "buckets") == pytest.approx(8.0 - 2.0 * 3 / 4)
    assert reduce_s(replace(slow, buckets=0), "none") == 0.0


@given(STAGES)
def test_buckets_end_when_a_simulation_of_them_ends(stages: list[StageTimes]) -> None:
    for stage in stages:
        backward_s, end_s = BACKWARD * stage.work_s, 0.0
        for bucket in range(1, stage.buckets + 1):
            end_s = max(end_s, backward_s * bucket / stage.buckets) + stage.bucket_s
        expected = end_s - backward_s if stage.buckets else 0.0
        assert reduce_s(stage, "buckets") == pytest.approx(expected, abs=1e-9)


def test_a_later_stages_all_reduce_hides_behind_the_backward_passes_before_it() -> None:
    late = StageTimes(1.0, bucket_s=1.0, buckets=1)
    first = StageTimes(3.0)
    assert iteration_s([first, late], 1, "none") == pytest.approx(4.0)
    assert iteration_s([late, first], 1, "none") == pytest.approx(5.0)


@given(STAGES, st.integers(1, 16))
def test_the_more_is_hidden_the_sooner_it_ends(stages: list[StageTimes], micro_batches: int) -> None:
    kinds: tuple[Hiding, ...] = ("all", "buckets", "none")
    took = [iteration_s(stages, micro_batches, hiding) for hiding in kinds]
    assert took[0] <= took[1] * (1 + 1e-9) + 1e-9
    assert took[1] <= took[2] * (1 + 1e-9) + 1e-9


@given(STAGES, st.integers(1, 16), st.sampled_from(["all", "buckets", "none"]), st.data())
def test_no_time_that_grows_makes_an_iteration_shorter(
    stages: list[StageTimes], micro_batches: int, hiding: Hiding, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(stages) - 1))
    name = data.draw(st.sampled_from(["work_s", "transfer_s", "bucket_s", "update_s"]))
    slower = list(stages)
    slower[index] = replace(stages[index], **{name: getattr(stages[index], name) + data.draw(SECONDS)})
    assert iteration_s(slower, micro_batches, hiding) >= iteration_s(stages, micro_batches, hiding) - 1e-9
