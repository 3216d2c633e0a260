"""Idle nodes that are kept free while regular jobs wait for nodes (`spare_nodes`). Pure.

A backfilled job starts on such a node at once, while preempting takes a second cycle, and by then its slot may be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from heapq import nsmallest
from math import inf

from bftd.core.model.domain import PoolNode
from bftd.pool.claims import SHORTEST_JOB_S

SPARED = "is kept free for regular jobs that wait (spare_nodes)"


def spared(free: Iterable[PoolNode], before: Set[str], count: int) -> frozenset[str]:
    """Return `count` of the free nodes that waiting jobs may use, to keep free; those kept `before` stay if possible.

    The longest windows come first, though a trainer would like them best too: a job starts on a node that is planned
    for another one only if its time limit ends before that, so a short window is of use to nobody.
    """

    def usefulness(node: PoolNode) -> tuple[bool, bool, float, int, str]:
        window_s = inf if node.window_s is None else node.window_s
        return window_s < SHORTEST_JOB_S, node.name not in before, -window_s, len(node.name), node.name

    return frozenset(node.name for node in nsmallest(count, free, key=usefulness))
