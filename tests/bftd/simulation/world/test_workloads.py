"""The regular jobs of simulated worlds."""

from __future__ import annotations

from random import Random

import pytest

from bftd.simulation.world.machine.loop import BEGIN_S
from bftd.simulation.world.workloads import WORKLOADS, steady, summit


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("nodes", [1, 7, 1000])
def test_jobs_come_in_order_within_the_hours_and_fit_on_the_machine(workload: str, nodes: int) -> None:
    jobs = WORKLOADS[workload](Random("1"), nodes, 6.0)
    assert [job.number for job in jobs] == list(range(1, len(jobs) + 1))
    submitted_s = [job.submit_s - BEGIN_S for job in jobs]
    assert submitted_s == sorted(submitted_s)
    assert 0.0 <= submitted_s[0] <= submitted_s[-1] < 6.0 * 3600.0
    assert all(1 <= job.component.need <= nodes and 0.0 < job.run_s <= job.limit_s for job in jobs)


def test_the_first_jobs_of_a_longer_time_are_the_same() -> None:
    for make in (steady, summit):
        short, long = (make(Random("1"), 64, hours) for hours in (1.0, 5.0))
        assert 0 < len(short) < len(long)
        assert long[: len(short)] == short


def test_summits_jobs_ask_for_as_many_nodes_as_are_busy_there() -> None:
    nodes, hours = 1000, 24.0 * 28
    jobs = summit(Random("1"), nodes, hours)
    asked = sum(job.component.need * job.run_s for job in jobs) / 3600.0
    assert 0.8 < asked / (nodes * hours) < 1.05
    first = sum(job.component.need for job in jobs if job.submit_s == jobs[0].submit_s)
    assert first >= 0.9 * nodes
