"""The share that is lent while Slurm preempts pilots all the time, whatever a driver says."""

from __future__ import annotations

import pytest

from benchmarks.preempting import Site

pytestmark = pytest.mark.slow


def test_regression_a_preempting_start_a_second_kept_four_tenths_of_three_hundred_nodes_idle() -> None:
    assert Site(nodes=300, starts_per_s=1.0).run(200).share >= 0.9


def test_regression_a_driver_that_says_every_two_seconds_that_it_leaves_delays_nobody() -> None:
    site = Site(nodes=60, starts_per_s=0.0, liar=True)
    assert site.run(60).share >= 0.9
    honest = [lease for lease in site.state.leases.values() if lease.live and lease.trainer != "1"]
    assert len(honest) > 40
