"""The numbers of nodes on which a trainer can run."""

from __future__ import annotations

from dataclasses import dataclass

from bftd.protocol.bounds import NODES_MOST, SIZES_MOST
from bftd.protocol.fields import Fields


@dataclass(frozen=True, slots=True)
class Sizes:
    """From `low` to `high` nodes (N_j^min and N_j^max of the paper), or only the sizes in `only` among these."""

    low: int
    high: int
    only: tuple[int, ...] | None = None

    def allows(self, nodes: int) -> bool:
        """Whether a trainer can run on that many nodes; 0 is always allowed."""
        if nodes == 0:
            return True
        return self.low <= nodes <= self.high and (self.only is None or nodes in self.only)

    def largest(self, nodes: int) -> int:
        """Return the largest size not above `nodes`, 0 if there is none."""
        most = min(nodes, self.high)
        if self.only is not None:
            most = max((size for size in self.only if size <= most), default=0)
        return most if most >= self.low else 0

    def above(self, nodes: int) -> int:
        """Return the smallest size above `nodes`, or `nodes` itself if there is none."""
        if self.only is not None:
            return min((size for size in self.only if nodes < size and self.low <= size <= self.high), default=nodes)
        larger = max(nodes + 1, self.low)
        return larger if larger <= self.high else nodes

    def between(self, low: int, high: int) -> Sizes | None:
        """Return the sizes from `low` to `high`, still only those in `only`; None if none of these lies between."""
        some = self.only is None or any(low <= size <= high for size in self.only)
        return Sizes(low, high, self.only) if low <= high and some else None

    def to_fields(self) -> dict[str, object]:
        """Return the three fields of a registration."""
        return {"nodes_min": self.low, "nodes_max": self.high, "sizes": list(self.only) if self.only else None}

    @classmethod
    def read(cls, fields: Fields) -> Sizes:
        """Read the sizes that a registration names; raises Malformed if there is none."""
        low = fields.whole("nodes_min", minimum=1, maximum=NODES_MOST)
        high = fields.whole("nodes_max", minimum=1, maximum=NODES_MOST)
        if low > high:
            raise fields.fault(f"nodes_min {low} is above nodes_max {high}")
        if not fields.has("sizes"):
            return cls(low, high)
        listed = fields.items("sizes", SIZES_MOST)
        if not all(isinstance(size, int) and not isinstance(size, bool) for size in listed):
            raise fields.wrong("sizes", "a list of whole numbers")
        usable = tuple(sorted({size for size in listed if low <= size <= high}))
        if not usable:
            raise fields.wrong("sizes", f"a list with at least one size from {low} to {high}")
        return cls(low, high, usable)
