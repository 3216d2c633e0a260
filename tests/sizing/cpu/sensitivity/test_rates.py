"""Throughput out of signs of progress: the warm-up left out, blocks, their median and its interval."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.cpu.sensitivity.rates import Count, Seen, interval, steady


def series(*parts: tuple[float, float], apart_s: float = 0.1) -> list[Seen]:
    """Entries of a command that does `rate` for `seconds`, one part after the other."""
    found, at_s, value = [Seen(100.0, 0.0)], 100.0, 0.0
    for seconds, rate in parts:
        for _ in range(round(seconds / apart_s)):
            at_s, value = at_s + apart_s, value + rate * apart_s
            found.append(Seen(at_s, value))
    return found


def test_the_rate_after_the_warm_up_is_what_is_counted_there() -> None:
    found = steady(series((5, 7), (10, 40)), 5.0)
    assert found is not None
    assert found.blocks == pytest.approx([40.0] * 10)
    assert found.counted == pytest.approx(400, rel=0.02)
    assert found.seconds == pytest.approx(10, rel=0.02)


def test_prefetched_batches_after_the_warm_up_are_left_out_too() -> None:
    found = steady(series((5, 7), (2, 900), (8, 40)), 5.0)
    assert found is not None
    assert interval(found.blocks) == pytest.approx((40, 40, 40))
    assert found.seconds == pytest.approx(8, abs=1.1)


def test_one_pause_for_a_checkpoint_does_not_move_the_rate_and_hardly_widens_it() -> None:
    found = steady(series((5, 40), (4, 40), (1, 0), (5, 40)), 5.0)
    assert found is not None
    value, low, high = interval(found.blocks)
    assert value == pytest.approx(40)
    assert low > 35
    assert high == pytest.approx(40)


def test_a_rate_that_goes_on_falling_is_told_by_the_interval() -> None:
    found = steady(series((5, 50), *((1, 50 - 3 * at) for at in range(10))), 5.0)
    assert found is not None
    _, low, high = interval(found.blocks)
    assert high - low > 10


def test_slow_steps_leave_out_one_step_where_the_warm_up_is_shorter() -> None:
    found = steady(series((80, 0.1), apart_s=10), 5.0)
    assert found is not None
    assert len(found.blocks) == 7
    assert found.blocks == pytest.approx([0.1] * 7)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_entries_are_no_rate(count: int) -> None:
    assert steady(series((80, 0.1), apart_s=10)[:count], 5.0) is None


def test_entries_in_the_same_moment_are_no_rate() -> None:
    assert steady([Seen(1.0, float(i)) for i in range(100)], 0.0) is None


def test_printed_rates_are_taken_as_they_are() -> None:
    random.seed(3)
    printed = [Seen(i * 0.5, 12 + random.random()) for i in range(60)]
    found = steady(printed, 5.0, printed=True)
    assert found is not None
    assert interval(found.blocks)[0] == pytest.approx(12.5, abs=0.2)


@given(
    st.floats(0.1, 1000),
    st.floats(0, 20),
    st.lists(st.floats(0.001, 5), min_size=20, max_size=200),
)
def test_steps_of_one_length_give_their_rate_whenever_they_are_seen(
    rate: float, warmup_s: float, gaps: list[float]
) -> None:
    """The moments at which progress is told do not matter: the count at each is right."""
    at_s, seen = 0.0, []
    for gap in gaps:
        at_s += gap
        seen.append(Seen(at_s, rate * at_s))
    found = steady(seen, warmup_s)
    if found is not None:
        assert found.blocks == pytest.approx([rate] * len(found.blocks), rel=1e-6)
        assert 1 <= len(found.blocks) <= 10
        assert found.counted == pytest.approx(rate * found.seconds, rel=1e-6)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_is_of_the_blocks(blocks: list[float]) -> None:
    value, low, high = interval(blocks)
    assert low <= value <= high
    assert {low, high} <= set(blocks)
    if len(blocks) < 6:
        assert (low, high) == (min(blocks), max(blocks))


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    random.seed(1)
    inside = 0
    for _ in range(2000):
        _, low, high = interval([random.gauss(0, 1) for _ in range(10)])
        inside += low <= 0 <= high
    assert 0.95 <= inside / 2000 <= 0.99


def test_a_count_goes_on_over_epochs_and_over_lines_of_slower_ranks() -> None:
    count = Count()
    told = [count.total(value) for value in (10, 20, 19, 20, 30, 1, 2, 2, 10)]
    assert told == [10, 20, None, None, 30, 31, 32, None, 40]
