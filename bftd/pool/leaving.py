"""Which of several leased nodes that would do equally well a regular job is to get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bftd.pool.backfill.wanted import lowest

# Picks of the nodes of a set (a mask) so many, those first that suit best once others have left already.
Chooser = Callable[[int, int, int], int]


class Leaving(Protocol):
    """What the core tells the pool of its leases: whose leaving costs the trainers least."""

    def chooser(self, bit: Mapping[str, int]) -> Chooser:
        """`chooser(mask, count, already)`: `count` of leased nodes, in masks in which each node has its `bit`."""


class AnyNode:
    """Where nothing is known of the trainers: the first ones."""

    def chooser(self, bit: Mapping[str, int]) -> Chooser:
        """The first so many of them."""
        return lambda mask, count, already: lowest(mask, min(count, mask.bit_count()))
