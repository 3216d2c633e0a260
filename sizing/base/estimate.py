"""A number with its origin, so that a guess never looks like a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["measured", "traced", "formula", "interpolated", "assumed"]
"""The origins from the best to the worst.

measured: read on the real thing; traced: counted while the user's own step ran on tensors without contents; formula:
computed from a model's sizes, or from numbers of a better origin; interpolated: between or next to values of a better
origin; assumed: from a data sheet or a rule. A combination has the worst origin of its parts.
"""

ORIGINS: tuple[Origin, ...] = ("measured", "traced", "formula", "interpolated", "assumed")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value between `low` and `high`, all in the unit that the name of the holding field says."""

    value: float
    low: float
    high: float
    origin: Origin

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate of {self.value} that is not within {self.low} to {self.high}")


def worst(*origins: Origin) -> Origin:
    """Return the origin of a number computed from several: that of the least certain one."""
    return max(origins, key=ORIGINS.index)
