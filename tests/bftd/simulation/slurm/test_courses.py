"""Courses of one queue: what is told of them, and that they can be watched and ended."""

from __future__ import annotations

import pytest

from bftd.simulation.slurm.courses import course
from bftd.simulation.slurm.harvester import HarvestSettings
from bftd.simulation.slurm.model import Delays
from tests.bftd.simulation.slurm.test_controller import T0, job, site

_JOBS = (job(0, 1, 0.0, run_s=50.0), job(1, 4, 600.0, run_s=50.0), job(2, 1, 3000.0, run_s=50.0))


def test_a_course_is_watched_to_its_last_submission_and_ends_when_the_watch_raises() -> None:
    parts: list[float] = []
    watched = course(site(), _JOBS, 1, phase_s=5.0, watch=parts.append)
    assert watched.waits_s == pytest.approx(course(site(), _JOBS, 1, phase_s=5.0).waits_s, abs=1.0)
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0.0, 1.0)

    def end(part: float) -> None:
        if part > 0.5:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        course(site(), _JOBS, 1, watch=end)


def test_of_a_period_only_its_harvest_counts() -> None:
    period = (T0 + 1000.0, T0 + 1100.0)
    found = course(site(), _JOBS, 1, HarvestSettings(), phase_s=5.0, period=period)
    assert found.harvested_node_s == pytest.approx(400.0)
    beyond = course(site(), _JOBS, 1, HarvestSettings(), phase_s=5.0, period=(T0, T0 + 1e6))
    assert beyond.harvested_node_s == pytest.approx(4 * 3050.0 - 6 * 50.0, abs=100.0)


def test_a_direct_delay_is_from_the_preemption_to_the_allocation() -> None:
    found = course(site(delays=Delays()), _JOBS, 1, HarvestSettings(), phase_s=5.0)
    assert found.delays_s[1] > 0.0
    assert found.delays_s[1] <= found.waits_s[1]
    assert course(site(), _JOBS, 1, phase_s=5.0).delays_s == (0.0, 0.0, 0.0)


def test_a_course_whose_last_job_runs_for_long_is_not_watched_each_second_of_it() -> None:
    parts: list[float] = []
    run_s = 10 * 86_400.0
    course(site(), (job(0, 1, 0.0, run_s=run_s, limit_s=run_s),), 1, watch=parts.append)
    assert len(parts) < 20_000
