"""The stream of regular jobs of the impact benchmark."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.impact.stream import RESERVED_NODES, make_stream

pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 10_000)


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
