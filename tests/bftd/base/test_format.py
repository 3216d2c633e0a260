"""Numbers and times as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base import format

NOW_S = 1_800_000_000.0
TIMES = st.none() | st.floats(0, 1e18)


def test_rates_are_short() -> None:
    assert [format.rate(rate) for rate in (0.0, 3.14159, 99.97, 250.0, 9999.0, 12_345.0, 2e6, 3e13)] == [
        "0", "3.14", "100", "250", "9999", "12.3k", "2M", "30T"
    ]  # fmt: skip


def test_regression_a_rate_just_below_a_unit_was_1e_03_of_the_smaller_one() -> None:
    assert [format.rate(rate) for rate in (9999.7, 999_400, 999_600, 999_600_000)] == ["10k", "999k", "1M", "1G"]


def test_a_rate_may_be_a_loss_or_none_at_all() -> None:
    assert [format.rate(rate) for rate in (-12_345.0, math.nan, math.inf)] == ["-12.3k", "nan", "infT"]


@given(st.floats(0, 1e14))
def test_a_rate_is_right_to_three_digits_and_has_no_exponent(rate: float) -> None:
    found = re.fullmatch(r"([0-9.]+)([kMGT]?)", format.rate(rate)) if rate >= 1e-4 else None
    if found is not None:
        scale = 1000 ** " kMGT".index(found[2] or " ")
        assert math.isclose(float(found[1]) * scale, rate, rel_tol=0.0051)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (22_349, "21.8 KiB"), (14e9, "13.0 GiB"), (3e16, "27284.8 TiB")],
)
def test_sizes_are_in_powers_of_two(size_bytes: float, text: str) -> None:
    assert format.size(size_bytes) == text


def test_what_is_counted_has_its_plural_and_what_is_listed_an_and() -> None:
    assert [format.counted(number, "job") for number in (0, 1, 1200)] == ["0 jobs", "1 job", "1,200 jobs"]
    assert [format.listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "", "a", "a and b", "a, b and c"
    ]  # fmt: skip


def test_of_many_names_a_few_are_named() -> None:
    assert format.some(["a", "b"]) == "a and b"
    assert format.some(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert format.some(["a", "b"], 1200, 2) == "a, b and 1,198 more"


def test_the_larger_a_number_the_fewer_its_decimals() -> None:
    assert [format.decimal(value) for value in (0.004, 0.47, 9.996, 99.96, 1234.5)] == [
        "0.00", "0.47", "10.0", "100", "1,234"
    ]  # fmt: skip
    assert [format.amount(value) for value in (None, 0, 3.0, 0.256, 1234.5)] == ["-", "0", "3", "0.26", "1,234"]


def test_durations_are_in_the_unit_that_suits_them() -> None:
    assert [format.span(s) for s in (-3, 0.4, 89, 700, 7000, 300_000)] == [
        "0 s", "0 s", "89 s", "12 min", "1.9 h", "3.5 d"
    ]  # fmt: skip
    assert [format.duration(s) for s in (0.25, 60, 754, 3600, 604_800)] == [
        "0.25 s", "1 min", "12.6 min", "1 h", "7 days"
    ]  # fmt: skip
    assert [format.period(s) for s in (45, 3600, 5400, 604_800)] == ["45 s", "1 hour", "90 minutes", "7 days"]
    assert format.elapsed(NOW_S - 93_784, NOW_S) == "1-02:03:04"


@given(TIMES, TIMES)
def test_any_time_can_be_shown(since_s: float | None, until_s: float | None) -> None:
    assert format.elapsed(since_s, until_s)
    assert format.end(since_s, NOW_S)
    assert all(shown(since_s) for shown in (format.clock, format.moment, format.minute))


def test_an_end_beyond_the_calendar_never_comes() -> None:
    assert format.end(1e18, NOW_S) == "never"
    assert format.end(None, NOW_S) == format.moment(1e18) == "-"
