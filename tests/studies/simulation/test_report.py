"""Figures of a run are those that one works out by hand, and intervals hold the truth as often as they say."""

from __future__ import annotations

import math
import random

import pytest

from studies.simulation import report
from studies.simulation.outcome import JobOutcome, Outcome, Span, levels
from studies.simulation.types import Allocation
from tests.studies.simulation.toys import job

pytestmark = pytest.mark.slow

ONE, TWO = Allocation("a", 1), Allocation("a", 2)


def outcome() -> Outcome:
    """Two jobs of one GPU: 1 runs from 0 to 40, grown from 20 on after a restart of 5 s; 2 waits and is cut off."""
    first = JobOutcome(
        job("1", work=50), 0.0, 40.0, None, 1, 1.0, (Span(ONE, 0, 0, 20, 1.0), Span(TWO, 20, 25, 40, 2.0))
    )
    second = JobOutcome(job("2", at_s=30, by_s=35), 40.0, None, None, 0, 2.0, (Span(ONE, 40, 40, 50, 2.0),))
    third = JobOutcome(job("3", at_s=10, by_s=35), None, None, 12.0, 0, 2.0, ())
    jobs = (first, second, third)
    return Outcome("p", jobs, levels(jobs), 50.0, 7)


def test_figures_are_those_worked_out_by_hand() -> None:
    found = report.figures(outcome(), {"m": 10}, took_s=0.7)
    assert (found.jobs, found.finished, found.dropped, found.window_finished) == (3, 1, 1, 0)
    assert found.mean_jct_s == found.median_jct_s == found.p99_jct_s == 40
    assert found.mean_queue_s == 5  # 0 and 10; the dropped one never started
    assert found.makespan_s == 40
    assert found.restarts == pytest.approx(1 / 3)
    # until 30 s, when the last was submitted: 20 iterations, and 2 a second for 5 s
    assert found.window_normalised == pytest.approx(30 / 30)
    assert found.window_raw == pytest.approx(10 * 30 / 30)
    assert found.peak_normalised == 2
    assert found.peak_raw == 20
    assert found.deadlines == 0
    assert found.decision_s == pytest.approx(0.1)


def test_a_run_without_an_end_and_without_jobs_has_figures_too() -> None:
    found = report.figures(Outcome("p", (), (), 0.0, 0), {})
    assert (found.jobs, found.mean_jct_s, found.deadlines, found.decision_s) == (0, None, None, None)
    assert "deadlines" not in report.summary([found])


def test_a_quantile_is_the_nearest_rank() -> None:
    values = list(range(1, 201))
    assert report.quantile(values, 0.99) == 198
    assert report.quantile([5.0], 0.99) == 5


def test_an_interval_holds_the_truth_in_95_of_100_cases() -> None:
    draw = random.Random(4)
    held = 0
    for _ in range(2000):
        found = report.interval([draw.gauss(3, 2) for _ in range(10)])
        held += found.low <= 3 <= found.high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)
    assert report.interval([2.0]) == report.Interval(2.0, 2.0, 2.0)


def test_ratios_are_paired_by_seed() -> None:
    found = report.paired([1.0, 10.0, 100.0], [2.0, 20.0, 200.0])
    assert found is not None
    assert found.value == found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5)
    assert report.paired([1.0, 4.0], [1.0, 1.0]).value == pytest.approx(math.sqrt(4))  # type: ignore[union-attr]
    assert report.paired([0.0], [1.0]) is None
