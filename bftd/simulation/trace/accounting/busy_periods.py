"""The rows of a trace from the periods in which nodes were busy, by a sweep over all nodes at once.

A period is a row (node, start, end) in seconds from the start of the trace, held in three parallel arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Spans:
    """Periods of single nodes: node index, start and end in seconds; none ends before it starts."""

    node: NDArray[np.int32]
    starts_s: NDArray[np.float64]
    ends_s: NDArray[np.float64]

    def within(self, duration_s: float) -> Spans:
        """Clip the periods to [0, duration_s]; drop those that lie outside or have no length."""
        starts_s, ends_s = np.maximum(self.starts_s, 0.0), np.minimum(self.ends_s, duration_s)
        kept = ends_s > starts_s
        return Spans(self.node[kept], starts_s[kept], ends_s[kept])


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle periods as the rows of a trace, and the number of periods dropped as too short."""

    times_s: NDArray[np.float64]
    node: NDArray[np.int32]
    idle: NDArray[np.bool_]
    dropped: int


def joined(*parts: Spans) -> Spans:
    """Return all periods of several `Spans`."""
    return Spans(
        np.concatenate([part.node for part in parts]),
        np.concatenate([part.starts_s for part in parts]),
        np.concatenate([part.ends_s for part in parts]),
    )


def overlaps(spans: Spans) -> int:
    """Count the periods that begin while another period of the same node lasts."""
    if not len(spans.node):
        return 0
    order = np.lexsort((spans.starts_s, spans.node))
    node, starts_s, ends_s = spans.node[order], spans.starts_s[order], spans.ends_s[order]
    # give each node a time range of its own, so that the running maximum of ends starts anew with it
    stretch_s = float(ends_s.max() - min(0.0, starts_s.min())) + 1.0
    latest_s = np.maximum.accumulate(ends_s + node * stretch_s)
    return int((starts_s[1:] + node[1:] * stretch_s < latest_s[:-1]).sum())


def idle(spans: Spans, nodes: int, duration_s: float, min_idle_s: float = 0.0) -> Idle:
    """Return the rows of all `nodes` for the times in which no period occupies them, sorted by time and then by node.

    An idle period shorter than `min_idle_s` is dropped, unless the start or the end of the trace cuts it: its length is
    not known then.
    """
    spans = spans.within(duration_s)
    every = np.arange(nodes, dtype=np.int32)
    # a step of 0 at time 0 for each node, so that its state at time 0 is always known
    node = np.concatenate([every, spans.node, spans.node])
    times_s = np.concatenate([np.zeros(nodes), spans.starts_s, spans.ends_s])
    steps = np.repeat(np.array([0, 1, -1], dtype=np.int64), [nodes, len(spans.node), len(spans.node)])
    order = np.lexsort((times_s, node))
    node, times_s, users = node[order], times_s[order], np.cumsum(steps[order])
    # after the last step at one time, a node's state holds until its next step
    last = np.append((node[1:] != node[:-1]) | (times_s[1:] != times_s[:-1]), True)
    node, times_s, free = node[last], times_s[last], users[last] == 0
    begins = np.append(True, node[1:] != node[:-1])
    before = np.append(False, free[:-1]) & ~begins
    turns = (free != before) & (times_s < duration_s)
    node, times_s, free = node[turns], times_s[turns], free[turns]
    short = _short(node, times_s, free, min_idle_s)
    node, times_s, free = node[~short], times_s[~short], free[~short]
    order = np.lexsort((node, times_s))
    return Idle(times_s[order], node[order], free[order], int(short.sum()) // 2)


def _short(
    node: NDArray[np.int32], times_s: NDArray[np.float64], free: NDArray[np.bool_], min_idle_s: float
) -> NDArray[np.bool_]:
    """Mark both rows of each complete idle period that is too short, in rows sorted by node and time."""
    short = np.zeros(len(node), dtype=bool)
    if len(node) > 1:
        whole = free[:-1] & (node[1:] == node[:-1]) & (times_s[:-1] > 0)
        short[:-1] = whole & (times_s[1:] - times_s[:-1] < min_idle_s)
        short[1:] |= short[:-1]
    return short
