"""Nodes on which a job that shares is to start, as long as others of its kind fit beside it."""

from __future__ import annotations

# Parts of nodes are compared with this slack: three thirds are a whole.
_SLACK = 1e-6


class PartialNodes:
    """Sets of nodes by the part of them that is still free, from 0 to 1."""

    def __init__(self) -> None:
        self._left: dict[float, int] = {}

    def fitting(self, together: int) -> int:
        """Return the nodes that one more job fits on, if `together` such jobs fit on a node."""
        found = 0
        if together > 1:
            for left, mask in self._left.items():
                if left + _SLACK >= 1.0 / together:
                    found |= mask
        return found

    def add(self, mask: int, together: int) -> None:
        """Note that nodes that were whole get their first job."""
        if together > 1 and mask:
            self._put(1.0 - 1.0 / together, mask)

    def use(self, mask: int, together: int) -> bool:
        """Note that nodes get one more job. Returns whether any of them was opened here."""
        share = 1.0 / together if together > 1 else 0.0
        before, self._left = self._left, {}
        found = False
        for left, nodes in before.items():
            taken = nodes & mask
            found = found or bool(taken and share)
            self._put(left, nodes & ~taken)
            self._put(left - share, taken)
        return found

    def _put(self, left: float, mask: int) -> None:
        if mask:
            left = round(left, 6)
            self._left[left] = self._left.get(left, 0) | mask
