"""A summary of a trace for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bftd.simulation.report.model import Floats, IdleNodes, NodeUse

if TYPE_CHECKING:
    from bftd.simulation.replay.account import Account
    from bftd.simulation.trace import Trace

# Enough for a smooth line on any screen, and few enough that the page stays small: a week in steps of half an hour.
_MOST_BINS = 336
_LEAST_BIN_S = 10.0


def pool_of(trace: Trace) -> IdleNodes:
    """Summarise a trace; raise TraceError for one without rows."""
    from bftd.simulation.trace.accounting.notes import notes
    from bftd.simulation.trace.stats import fragments, stats

    found = stats(trace)
    lengths_s, cut = fragments(trace)
    edges_s = _edges_s(trace)
    return IdleNodes(
        nodes=found.nodes,
        duration_s=trace.duration_s,
        start=trace.start,
        edges_s=edges_s,
        idle_nodes=_means(trace, edges_s),
        least=found.idle_nodes_min,
        most=found.idle_nodes_max,
        events_per_h=found.events_per_h,
        lengths_s=np.sort(lengths_s),
        cut=int(cut.sum()),
        notes=tuple(notes(trace.notes)),
    )


def use_of(account: Account, trace: Trace) -> NodeUse:
    """Return what a replay of the trace made of its nodes, in the same bins as `pool_of`.

    A stall is counted where it begins, and may be longer than a bin: the training after it makes up for it first.
    """
    edges_s = _edges_s(trace)
    trained_s = np.concatenate([[0.0], np.cumsum(account.training_node_s(edges_s))])
    lengths_s = np.diff(edges_s)
    return NodeUse(account.held_node_s(edges_s) / lengths_s, np.diff(np.maximum.accumulate(trained_s)) / lengths_s)


def _edges_s(trace: Trace) -> Floats:
    bins = int(np.clip(trace.duration_s / _LEAST_BIN_S, 1, _MOST_BINS))
    edges_s: Floats = np.linspace(0.0, trace.duration_s, bins + 1)
    return edges_s


def _means(trace: Trace, edges_s: Floats) -> Floats:
    """Return the mean number of idle nodes between consecutive edges."""
    times_s = np.append(trace.times_s, edges_s[-1])
    counts = np.cumsum(np.where(trace.idle, 1, -1))
    node_s = np.concatenate([[0.0], np.cumsum(counts * np.diff(times_s))])
    # no node is idle before the first row, if that is not at time 0
    means: Floats = np.diff(np.interp(edges_s, times_s, node_s)) / np.diff(edges_s)
    return means
