"""The published step times: seconds follow from the tables, and operators are counted."""

from __future__ import annotations

import pytest

from benchmarks.sizing import step_times

pytestmark = pytest.mark.slow


def test_seconds_follow_from_the_papers_tflops_and_its_number_of_operations() -> None:
    rows = {row["case"]: row for row in step_times.megatron()}
    assert len(rows) == len(step_times.MEGATRON)
    words = 1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304)
    assert rows["32 GPUs"]["measured_s"] == pytest.approx(96 * 512 * 2048 * 24 * 2304**2 * words / (32 * 137e12))
    assert all(0 < row["low_s"] < row["value_s"] < row["high_s"] for row in rows.values())


@pytest.mark.torch
def test_operators_of_small_tensors_are_counted_and_timed() -> None:
    rows = step_times.dispatch(steps=1)
    assert min(row["operators"] for row in rows) > 100
    assert min(row["per_s"] for row in rows) > 0
