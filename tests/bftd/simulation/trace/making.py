"""Traces made by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from bftd.simulation.trace import Trace

SUMMIT = Path(__file__).parents[5] / "shared" / "data" / "summit" / "idle-week1.csv.gz"
needs_summit = pytest.mark.skipif(not SUMMIT.exists(), reason="the Summit trace is not there (../shared/data)")

# node -> its idle periods (start, end) in seconds; an end beyond the duration is none
Periods = Mapping[str, Sequence[tuple[float, float]]]


def trace_of(periods: Periods, duration_s: float, **fields: object) -> Trace:
    """A trace of idle periods; rows are sorted by time, then in the order of the nodes."""
    nodes = tuple(periods)
    rows = []
    for index, node in enumerate(nodes):
        for start_s, end_s in periods[node]:
            rows.append((start_s, index, True))
            if end_s <= duration_s:
                rows.append((end_s, index, False))
    rows.sort()
    return Trace(
        nodes=nodes,
        times_s=np.array([row[0] for row in rows], dtype=np.float64),
        node=np.array([row[1] for row in rows], dtype=np.int32),
        idle=np.array([row[2] for row in rows], dtype=bool),
        duration_s=duration_s,
        **fields,  # type: ignore[arg-type]
    )


@st.composite
def periods(draw: st.DrawFn, duration: int = 60, most_nodes: int = 5) -> dict[str, list[tuple[float, float]]]:
    """Idle periods within whole or half seconds of a short trace; at least one."""
    count = draw(st.integers(1, most_nodes))
    unit = draw(st.sampled_from([1.0, 0.5, 0.125]))
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(count):
        turns = sorted(draw(st.sets(st.integers(0, int(duration / unit)), max_size=8)))
        times = [turn * unit for turn in turns]
        if len(times) % 2:
            times.append(duration + 1.0)
        found[f"n{number}"] = list(zip(times[0::2], times[1::2], strict=True))
    if not any(found.values()):
        found["n0"] = [(0.0, duration + 1.0)]
    return found
