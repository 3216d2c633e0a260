"""What a run is seen to use, by times that are given."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sizing.cpu.runs.measurement import ObservationLimits
from sizing.cpu.runs.steady_state import PointObserver


def seen(monkeypatch: pytest.MonkeyPatch, start_s: int, *, last_s: int, limits: ObservationLimits) -> Any:
    """The point of a command that reads 90 MB a second for its start, then 10 MB for each of its ten steps a second."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    watch = PointObserver(2, limits, None, "affinity", ["train"], "out")
    watch.take(b"", [{"op": "began"}], 0.0)
    for tenth in range(last_s * 10):
        now_s = tenth / 10
        said: list[dict[str, object]] = []
        trained = max(0, tenth - start_s * 10)
        if tenth % 10 == 0:
            read = 9e6 * min(tenth, start_s * 10) + 10e6 * trained
            said.append({"op": "used", "memory": 10**8, "read": read, "cpu_s": now_s, "at_s": 500 + now_s})
        if tenth >= start_s * 10:
            said.append({"op": "step", "at_s": 500 + now_s, "step": trained + 1, "samples": 16 * (trained + 1)})
        watch.take(b"", said, now_s)
        if watch.enough(now_s):
            break
    else:
        watch.take(b"", [{"op": "ended", "code": 0, "memory": 10**8}], last_s)
    return watch.result([], 0)


def test_regression_what_a_command_reads_to_start_is_no_part_of_what_its_samples_are_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = seen(monkeypatch, 10, last_s=60, limits=ObservationLimits())
    assert point.rate.value == pytest.approx(160.0, rel=0.01)
    assert point.read_bytes_s / point.rate.value == pytest.approx(10e6 / 16, rel=0.01)
    assert point.cpu_s == pytest.approx(1.0)


def test_of_a_run_that_is_too_short_what_it_read_since_its_first_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    point = seen(monkeypatch, 10, last_s=14, limits=ObservationLimits(warmup_s=30.0))
    assert point.read_bytes_s == pytest.approx(100e6, rel=0.01)


@pytest.mark.parametrize("wrong", [{"step": 10**400}, {"samples": 10**300}, {"at_s": float("nan")}, {"step": -1}])
def test_regression_a_number_that_is_no_count_ended_in_a_traceback(wrong: dict[str, Any]) -> None:
    watch = PointObserver(1, ObservationLimits(), None, "affinity", ["train"], "out")
    watch.take(b"", [{"op": "step", "at_s": 500.0, "step": 1, "samples": 16, **wrong}], 1.0)
    assert watch.progress(1.0).phase == "starting"


def test_while_no_step_is_seen_the_progress_has_what_was_printed_and_what_would_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    watch = PointObserver(2, ObservationLimits(), None, "affinity", ["train"], "out")
    watch.take(b"hello\n", [{"op": "began"}], 1.0)
    assert (watch.progress(1.0).printed, watch.progress(1.0).expression) == ("hello", "")
    watch.take(b"at 10 of 90\nat 20 of 90\n", [], 2.0)
    at = watch.progress(2.0)
    assert (at.printed, at.expression) == ("at 20 of 90", "at (?P<step>[0-9][0-9,_]*)")
    assert at.expression in watch._too_little(ended=False)
    watch.take(b"", [{"op": "step", "at_s": 3.0, "step": 1, "samples": 4}], 3.0)
    assert watch.progress(3.0).printed == ""
