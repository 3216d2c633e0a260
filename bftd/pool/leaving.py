"""Which of several leased nodes that would do equally well a regular job is to get."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Leaving(Protocol):
    """What the core tells the pool of its leases: whose leaving costs the trainers least."""

    def cheapest(self, nodes: Sequence[str], count: int, already: Collection[str]) -> Sequence[str]:
        """`count` of the leased `nodes`, those first whose leaving costs least once those of `already` have left."""


class AnyNode:
    """Where nothing is known of the trainers: the first ones."""

    def cheapest(self, nodes: Sequence[str], count: int, already: Collection[str]) -> Sequence[str]:
        """The first `count` of them."""
        return nodes[:count]
