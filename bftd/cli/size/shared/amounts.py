"""Amounts of memory in the output of `bft size`."""

from __future__ import annotations


def amount(count: float) -> str:
    """Format a number of bytes."""
    for unit, size, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 1)):
        if abs(count) >= size:
            return f"{count / size:.{digits}f} {unit}"
    return f"{count:.0f} B"
