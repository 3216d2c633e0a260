"""The published step times: what was measured follows from the tables, and Megatron's rows are told about."""

from __future__ import annotations

import pytest

from benchmarks.sizing import step_times
from sizing.base.estimate import Estimate

pytestmark = pytest.mark.slow


def test_seconds_follow_from_the_papers_tflops_and_its_number_of_operations() -> None:
    rows = {row["case"]: row for row in step_times.megatron()}
    assert len(rows) == len(step_times.MEGATRON)
    words = 1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304)
    assert rows["32 GPUs"]["measured_s"] == pytest.approx(96 * 512 * 2048 * 24 * 2304**2 * words / (32 * 137e12))
    assert all(0 < row["low_s"] < row["value_s"] < row["high_s"] for row in rows.values())


def test_a_case_is_inside_where_the_range_holds_it() -> None:
    told = Estimate(2.0, 1.0, 4.0, "assumed")
    assert [step_times._row("a", "b", at_s, told)["inside"] for at_s in (0.9, 1.0, 4.0, 4.1)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.torch
def test_operators_of_small_tensors_are_counted_and_timed() -> None:
    rows = step_times.dispatch(steps=1)
    assert min(row["operators"] for row in rows) > 100
    assert min(row["per_s"] for row in rows) > 0
