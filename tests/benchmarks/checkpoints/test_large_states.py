"""The figures of large states, from lines of workers, ranks and clients."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.checkpoints import by_path, clients, large_states, training
from tests.support.messages import wording

pytestmark = pytest.mark.slow


def line(what: str, at_s: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "pid": 1, "at_s": at_s, **more}


def told() -> list[dict[str, Any]]:
    """Steps of 0.1 s, of 0.2 s while the state of a save travels from 5 to 6 and from 15 to 16 s."""
    lines = [line("step", at_s / 10, took_s=0.1) for at_s in range(1, 49)]
    for begin_s, stall_s in ((5.0, 0.6), (15.0, 0.2)):
        lines.append(line("written from", begin_s))
        lines.append(line("save", begin_s, stall_s=stall_s, copy_s=0.2, cpu_s=0.3))
        lines += [line("step", begin_s + fifth / 5, took_s=0.2) for fifth in range(1, 6)]
        lines.append(line("written", begin_s + 1, bytes=2_000_000, serialize_cpu_s=0.1, send_cpu_s=0.7))
        lines += [line("step", begin_s + 1 + tenth / 10, took_s=0.1) for tenth in range(2, 20)]
    return lines


def test_the_pace_is_that_of_steps_which_lie_wholly_in_a_travel_against_those_that_touch_none() -> None:
    found = training.figures(told(), hashed_bytes_s=4e6, saves=2)
    assert found[wording("benchmarks.checkpoints_training.steps_meanwhile")] == 10
    assert found[wording("benchmarks.checkpoints.pace")] == pytest.approx(0.5)
    assert found["upload s"] == pytest.approx(1.0)


def test_the_first_save_which_touches_fresh_memory_is_told_apart() -> None:
    found = training.figures(told(), hashed_bytes_s=4e6, saves=2)
    assert found["stall / memory copy"] == pytest.approx(1.0)
    assert found[wording("benchmarks.checkpoints_training.first_save")] == pytest.approx(3.0)


def test_ratios_are_taken_by_pairs_of_one_repetition() -> None:
    assert clients.ratios([1.0, 2.0, 4.0], [3.0, 4.0, 4.0])[wording("benchmarks.checkpoints.all_over_one")] == 2.0
    rows = [
        {
            wording("benchmarks.checkpoints_by_path.saved_by", savers=4, how="plain"): plain,
            wording("benchmarks.checkpoints_by_path.saved_by", savers=4, how="distributed"): plain * 1.5,
            "bit-equal": True,
        }
        for plain in (1, 9)
    ]
    assert by_path.summary(rows, ["saved by 4"])[wording("benchmarks.checkpoints.saved_by_four")] == pytest.approx(1.5)


def test_the_table_marks_what_is_beyond_its_bound_and_leaves_samples_out() -> None:
    found = {"training": {"stall / memory copy": 1.31, "workers killed": 0, "samples": [{"stall_s": 1.0}]}}
    rows = large_states.table(found).splitlines()[2:]
    assert ["missed" in row for row in rows] == [True, False]
