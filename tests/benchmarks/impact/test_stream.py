"""The stream of regular jobs of the impact benchmark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.impact.stream import RESERVED_NODES, make_stream

pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 10_000)


def test_one_seed_is_one_stream() -> None:
    assert make_stream(7, 60, 16) == make_stream(7, 60, 16)
    assert make_stream(7, 60, 16) != make_stream(8, 60, 16)


@given(seed=SEEDS, count=st.integers(8, 100), nodes=st.integers(8, 32), brief=st.booleans())
@settings(deadline=None, max_examples=60)
def test_every_job_fits_the_cluster_and_its_limit_and_comes_after_what_it_depends_on(
    seed: int, count: int, nodes: int, brief: bool
) -> None:
    stream = make_stream(seed, count, nodes, brief=brief)
    assert len(stream.jobs) == count
    assert [job.at_s for job in stream.jobs] == sorted(job.at_s for job in stream.jobs)
    for job in stream.jobs:
        assert 1 <= job.nodes <= nodes - RESERVED_NODES
        assert 0 < job.run_s < 60 * job.limit_min
        assert job.after is None or 0 <= job.after < job.number


@given(seed=SEEDS, stretch=st.integers(2, 6))
@settings(deadline=None, max_examples=40)
def test_a_stretched_stream_is_the_same_stream_in_slow_motion(seed: int, stretch: int) -> None:
    quick, slow = make_stream(seed, 60, 16), make_stream(seed, 60, 16, stretch=stretch)
    assert slow.reservation.at_s == stretch * quick.reservation.at_s
    for before, after in zip(quick.jobs, slow.jobs, strict=True):
        assert (after.nodes, after.kind, after.after, after.options) == (
            before.nodes, before.kind, before.after, before.options
        )  # fmt: skip
        assert after.limit_min == stretch * before.limit_min
        assert after.at_s == pytest.approx(stretch * before.at_s, abs=0.01)
        if after.kind == "true_plan":
            assert 60 * after.limit_min - after.run_s == pytest.approx(60 * before.limit_min - before.run_s, abs=0.01)
        else:
            assert after.run_s == pytest.approx(stretch * before.run_s, abs=0.01)


@given(seed=SEEDS)
@settings(deadline=None, max_examples=40)
def test_a_full_stream_has_every_kind_of_job_a_burst_and_mostly_small_jobs(seed: int) -> None:
    stream = make_stream(seed, 60, 16)
    kinds = {job.kind for job in stream.jobs}
    assert kinds == {"plain", "true_plan", "dependency", "nodelist", "constraint", "contiguous", "reservation"}
    assert sum(job.at_s < 1 for job in stream.jobs) >= 15
    sizes = sorted(job.nodes for job in stream.jobs)
    assert sizes[len(sizes) // 2] <= 3
    assert all(job.run_s > 56 for job in stream.jobs if job.kind == "true_plan")


def test_the_sizes_have_a_heavy_tail() -> None:
    largest = [max(job.nodes for job in make_stream(seed, 60, 16).jobs) for seed in range(50)]
    assert sum(nodes >= 8 for nodes in largest) >= 45


@given(seed=SEEDS)
@settings(deadline=None, max_examples=40)
def test_a_full_stream_is_two_minutes_of_work_and_more_for_its_nodes(seed: int) -> None:
    work_s = sum(job.nodes * job.run_s for job in make_stream(seed, 60, 16).jobs) / 16
    assert 110 < work_s < 220


def test_the_job_of_the_reservation_is_submitted_before_it_begins() -> None:
    stream = make_stream(1, 60, 16)
    (job,) = [job for job in stream.jobs if job.kind == "reservation"]
    assert job.at_s < stream.reservation.at_s
    assert job.nodes == len(stream.reservation.nodes)


def test_a_brief_stream_waits_for_no_minute_to_pass() -> None:
    assert max(job.run_s for job in make_stream(1, 8, 16, brief=True).jobs) == pytest.approx(45.0)
