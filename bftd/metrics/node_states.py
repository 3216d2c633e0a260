"""Which of the states of `bftd.core.sample` a node is in. Pure."""

from __future__ import annotations

from bftd.core.domain import PoolNode
from bftd.core.sample import AWAY, IDLE, LEASED, PLANNED, REGULAR


def state_of(node: PoolNode, leased: bool) -> str:
    """What a node does; `leased` is whether a lease of ours is on it."""
    if leased or node.pilot is not None:
        return LEASED
    if node.in_pool:
        return IDLE
    base = node.state.partition("+")[0]
    if base in ("ALLOCATED", "MIXED"):
        return REGULAR
    return PLANNED if node.wanted else AWAY
