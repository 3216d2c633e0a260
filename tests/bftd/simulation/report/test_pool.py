"""The idle nodes in bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.simulation.report.pool import pool_of
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
