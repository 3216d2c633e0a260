"""The choice between equally good leased nodes for a regular job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bftd.pool.backfill.model import lowest

# Picks nodes of a set: arguments are the set (a mask), the count, and the nodes that have left already.
Chooser = Callable[[int, int, int], int]


class Leaving(Protocol):
    """The core's knowledge of its leases, for the pool: the nodes whose leaving costs the trainers least."""

    def chooser(self, bit: Mapping[str, int]) -> Chooser:
        """Return `chooser(mask, count, already)`, which picks `count` leased nodes; each has its `bit` in masks."""


class AnyNode:
    """The choice if nothing is known of the trainers: the first nodes."""

    def chooser(self, bit: Mapping[str, int]) -> Chooser:
        """Return a chooser of the first nodes of a set."""
        return lambda mask, count, already: lowest(mask, min(count, mask.bit_count()))
