"""The tuner of one stage: what it finds on surfaces of every kind, and how few splits it measures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.parallel import Parallel
from sizing.cells.tune import Tuned, middle, tune

pytestmark = pytest.mark.slow


def splits(count: int) -> list[Parallel]:
    """All splits of 2^(count - 1) GPUs, in the order of dp."""
    return [Parallel(2**at, 2 ** (count - 1 - at)) for at in range(count)]


def tuned(times: Sequence[float | None]) -> Tuned:
    """What comes of a stage whose splits take so long, with more dp from left to right."""
    calls: list[Parallel] = []

    def measure(split: Parallel, seconds: float | None) -> float | None:
        assert split not in calls, "measured twice"
        calls.append(split)
        return seconds

    axis = splits(len(times))
    found = tune(
        {
            split: lambda split=split, seconds=seconds: measure(split, seconds)  # type: ignore[misc]
            for split, seconds in zip(axis, times, strict=True)
        }
    )
    assert list(found.times) == calls
    return found


seconds = st.floats(0.01, 100)


@st.composite
def valleys(draw: st.DrawFn) -> list[float | None]:
    """Times that fall and then rise, of which those that fit lie side by side."""
    falling = sorted(draw(st.lists(seconds, max_size=5, unique=True)), reverse=True)
    lowest = draw(st.floats(0.001, 0.009))
    rising = sorted(draw(st.lists(seconds, max_size=5, unique=True)))
    fits: list[float | None] = [*falling, lowest, *rising]
    return [None] * draw(st.integers(0, 3)) + fits + [None] * draw(st.integers(0, 3))


@given(valleys())
@settings(max_examples=300)
def test_where_times_fall_and_rise_the_fastest_split_is_found(times: list[float | None]) -> None:
    assert tuned(times).time_s == min(filter(None, times))


@given(st.lists(st.none() | seconds, min_size=1, max_size=9))
@settings(max_examples=500)
def test_whatever_the_times_are_a_stage_that_fits_is_never_called_one_that_does_not(
    times: list[float | None],
) -> None:
    found = tuned(times)
    assert (found.time_s is None) == (not any(times))
    assert found.tried <= found.candidates == len(times)
    if found.best is not None:
        assert found.time_s == times[splits(len(times)).index(found.best)]
        assert found.time_s == min(filter(None, found.times.values()))
    else:
        assert found.tried == len(times)


@given(st.lists(st.none() | seconds, min_size=2, max_size=9))
def test_the_extremes_are_measured_first_and_no_worse_than_what_is_chosen(times: list[float | None]) -> None:
    found = tuned(times)
    axis = splits(len(times))
    assert list(found.times)[:2] == [axis[-1], axis[0]]
    assert all(found.time_s is not None and found.time_s <= extreme for extreme in (times[0], times[-1]) if extreme)


def test_the_half_of_an_extreme_that_is_clearly_slower_is_left_alone() -> None:
    found = tuned([8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert list(found.times.values()) == [1.0, 8.0, 2.0]  # both extremes, and what lies beside the better one


def test_close_extremes_are_told_apart_by_the_split_between_them() -> None:
    assert list(tuned([1.17, 0.6, 0.5, 0.7, 1.0]).times.values())[:3] == [1.0, 1.17, 0.5]
    assert 0.5 not in list(tuned([1.18, 1.3, 0.5, 1.2, 1.0]).times.values())


@pytest.mark.parametrize(
    "times",
    [
        [None, None, 2.0, None, None],
        [None, 2.0, None, None],
        [None, None, None, 3.0, None],
        [2.0, 1.5, 1.0, None, None],
        [None, None, 1.0, 1.5, 2.0],
    ],
)
def test_a_split_between_extremes_that_do_not_fit_is_found(times: list[float | None]) -> None:
    assert tuned(times).time_s == min(filter(None, times))


def test_the_search_goes_where_memory_ends_first_because_times_fall_that_way() -> None:
    found = tuned([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, None])
    assert list(found.times.values()) == [None, 9.0, 6.0, 5.0, 4.0]


def test_one_split_is_measured_once() -> None:
    assert tuned([3.0]).times == {Parallel(1, 1): 3.0}
    assert tuned([None]).best is None


@pytest.mark.parametrize(("count", "dp", "tp"), [(5, 4, 4), (4, 2, 4), (2, 1, 2), (1, 1, 1)])
def test_the_third_sample_has_as_much_of_both_and_else_more_tensor_parallelism(count: int, dp: int, tp: int) -> None:
    assert middle(splits(count)) == Parallel(dp, tp)


def test_the_number_of_measurements_grows_slower_than_that_of_splits() -> None:
    found = tuned([float(20 - at) for at in range(20)])
    assert (found.tried, found.candidates) == (3, 20)
