"""The confidence interval of a median, and how many rounds a measurement takes."""

from __future__ import annotations

from math import comb

from hypothesis import given
from hypothesis import strategies as st

from sizing.tracer.runs.rounds import MOST, interval, repeated, settled


@given(st.integers(1, 200))
def test_the_interval_covers_the_median_of_any_distribution_95_times_in_100_and_no_more_is_cut_than_that(
    count: int,
) -> None:
    _, low, high = interval(list(range(count)))
    out = int(low)
    assert high == count - 1 - out

    def missed(cut: int) -> float:
        return 2 * sum(comb(count, below) for below in range(cut + 1)) / 2**count

    if missed(0) > 0.05:
        assert out == 0
    else:
        assert missed(out) <= 0.05
        assert missed(out + 1) > 0.05 or out + 1 >= count / 2


def test_regression_more_rounds_than_a_float_has_powers_of_two() -> None:
    value, low, high = interval(list(range(3001)))
    assert value == 1500
    # the normal approximation, 1.96 / 2 times the square root of the count
    assert 1500 - low == high - 1500 == 54


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=40))
def test_the_median_lies_within_its_interval(samples: list[float]) -> None:
    value, low, high = interval(samples)
    assert min(samples) <= low <= value <= high <= max(samples)


def test_rounds_end_when_the_interval_is_within_two_in_a_hundred_or_at_three_times_as_many() -> None:
    calm, _ = repeated(lambda: (1.0, 0.0), 10)
    assert len(calm) == 10
    times = iter(range(1, 1000))
    wild, _ = repeated(lambda: (float(next(times)), 0.0), 10)
    assert len(wild) == MOST * 10
    late = iter([*(float(at) for at in range(1, 13)), *[6.5] * 100])
    found, _ = repeated(lambda: (next(late), 0.0), 10)
    assert 10 < len(found) < MOST * 10
    assert settled(found)
