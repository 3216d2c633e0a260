"""The idle nodes in bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.simulation.replay import Options, run
from bftd.simulation.report.pool import pool_of, use_of
from tests.bftd.simulation.report.making import trainers
from tests.bftd.simulation.trace.making import periods, trace_of

pytestmark = pytest.mark.slow


def test_a_bin_holds_the_mean_of_what_was_idle_in_it() -> None:
    pool = pool_of(trace_of({"a": [(5.0, 20.0)], "b": [(0.0, 30.0)]}, 30.0))
    assert pool.edges_s.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert pool.idle_nodes.tolist() == pytest.approx([1.5, 2.0, 1.0])


@settings(deadline=None)
@given(st.data(), st.integers(60, 7200))
def test_bins_hold_all_node_time(data: st.DataObject, duration: int) -> None:
    idle = data.draw(periods(duration))
    trace = trace_of(idle, float(duration))
    node_s = sum(min(end, duration) - start for spans in idle.values() for start, end in spans)
    pool = pool_of(trace)
    assert float(pool.idle_nodes @ np.diff(pool.edges_s)) == pytest.approx(node_s)
    assert float(pool.lengths_s.sum()) == pytest.approx(node_s)


@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(60, 7200))
def test_regression_more_nodes_were_drawn_as_held_than_were_idle(data: st.DataObject, duration: int) -> None:
    trace = trace_of(data.draw(periods(duration)), float(duration))
    account = run(trace, trainers(), Options(t_fwd_s=600.0)).account
    pool, use = pool_of(trace), use_of(account, trace)
    assert (use.held <= pool.idle_nodes + 1e-9).all()
    assert (use.training <= use.held + 1e-9).all()
    assert (use.training >= 0).all()
    lengths_s, whole = np.diff(pool.edges_s), np.array([0.0, trace.duration_s])
    assert float(use.held @ lengths_s) == pytest.approx(float(account.held_node_s(whole)[0]))
    assert float(use.training @ lengths_s) >= float(account.training_node_s(whole)[0]) - 1e-6
