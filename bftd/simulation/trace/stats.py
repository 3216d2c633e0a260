"""Statistics of a trace: Table 1 and Figure 1 of BFTrainer (section 2.1) for any trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.model import HOUR_S, Trace

PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)
# Lengths for the shares of shorter fragments: 1, 2, 5, 10 and 30 minutes, 1, 3, 6 and 12 hours, a day.
LIMITS_S = (60, 120, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Fragments:
    """Figure 1: fragments, the periods in which one node is idle.

    `cut` of them begin or end with the trace: their true length is unknown, their length within the trace is counted.
    `shorter` lists (length in s, share of the fragments that are shorter, share of the idle node time in those).
    """

    count: int
    cut: int
    mean_s: float
    percentiles_s: dict[str, float]
    shorter: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Table 1, with further figures.

    `inc_per_h` and `dec_per_h` count the times at which the number of idle nodes rose and fell, as Table 1 does;
    `joined_per_h` and `left_per_h` the events at which at least one node joined and left, as section 2.1 does. An event
    is a time after 0 with any change. `eq_nodes` is equation (18), `node_hours` equation (17), over the whole trace;
    `ratio` is `eq_nodes` over all `nodes`.
    """

    source: str
    start: str
    duration_s: float
    nodes: int
    events: int
    events_per_h: float
    inc_per_h: float
    dec_per_h: float
    joined_per_h: float
    left_per_h: float
    ratio: float
    eq_nodes: float
    node_hours: float
    idle_nodes_min: int
    idle_nodes_max: int
    fragments: Fragments

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON data."""
        return asdict(self)


def stats(trace: Trace) -> Stats:
    """Compute the statistics of a trace of at least one row."""
    if not len(trace.times_s):
        raise TraceError("no node of the trace is ever idle: there is nothing to tell")
    times_s, moment = np.unique(trace.times_s, return_inverse=True)
    joined = np.bincount(moment, weights=trace.idle, minlength=len(times_s))
    left = np.bincount(moment, weights=~trace.idle, minlength=len(times_s))
    size = np.cumsum(joined - left)
    spans_s = np.diff(np.append(times_s, trace.duration_s))
    node_seconds = float(size @ spans_s)
    hours = trace.duration_s / HOUR_S
    later = times_s > 0
    joined, left = joined[later], left[later]
    eq_nodes = node_seconds / trace.duration_s
    seen = size[spans_s > 0] if times_s[0] == 0 else np.append(0.0, size[spans_s > 0])
    return Stats(
        source=trace.source,
        start=trace.start,
        duration_s=trace.duration_s,
        nodes=len(trace.nodes),
        events=int(later.sum()),
        events_per_h=int(later.sum()) / hours,
        inc_per_h=int((joined > left).sum()) / hours,
        dec_per_h=int((joined < left).sum()) / hours,
        joined_per_h=int((joined > 0).sum()) / hours,
        left_per_h=int((left > 0).sum()) / hours,
        ratio=eq_nodes / len(trace.nodes),
        eq_nodes=eq_nodes,
        node_hours=node_seconds / HOUR_S,
        idle_nodes_min=int(seen.min()),
        idle_nodes_max=int(seen.max()),
        fragments=_summed_up(*fragments(trace)),
    )


def fragments(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the length in seconds of each fragment, and whether the start or the end of the trace cuts it."""
    order = np.argsort(trace.node, kind="stable")
    node, times_s, idle = trace.node[order], trace.times_s[order], trace.idle[order]
    # in each node's rows the row after a join is its leave; without one, the node is idle to the end
    ends_s = np.append(times_s[1:], trace.duration_s)
    open_end = np.append(node[1:] != node[:-1], True)
    ends_s[open_end] = trace.duration_s
    cut = open_end | (times_s == 0)
    return (ends_s - times_s)[idle], cut[idle]


def _summed_up(lengths_s: NDArray[np.float64], cut: NDArray[np.bool_]) -> Fragments:
    total_s = float(lengths_s.sum()) or 1.0
    percentiles_s = np.percentile(lengths_s, PERCENTILES)
    shorter = [(lengths_s < limit_s, limit_s) for limit_s in LIMITS_S]
    return Fragments(
        count=len(lengths_s),
        cut=int(cut.sum()),
        mean_s=float(lengths_s.mean()),
        percentiles_s={f"p{rank}": float(value) for rank, value in zip(PERCENTILES, percentiles_s, strict=True)},
        shorter=tuple(
            (float(limit_s), float(below.mean()), float(lengths_s[below].sum()) / total_s) for below, limit_s in shorter
        ),
    )
