"""A number with where it comes from: nothing that is guessed looks like something that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["measured", "traced", "formula", "interpolated", "assumed"]
"""From the best to the worst.

measured: read on the real thing; traced: counted while the user's own step ran on tensors without contents; formula:
worked out of a model's sizes, or of numbers of a better origin; interpolated: between or beside values of a better
origin; assumed: a data sheet's, or a rule's. What is put together has the worst origin of its parts.
"""

ORIGINS: tuple[Origin, ...] = ("measured", "traced", "formula", "interpolated", "assumed")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value between `low` and `high`, all in the same unit, which the name of the field that holds it says."""

    value: float
    low: float
    high: float
    origin: Origin

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate of {self.value} that is not within {self.low} to {self.high}")


def worst(*origins: Origin) -> Origin:
    """The origin of what is worked out of several numbers: that of the least certain one."""
    return max(origins, key=ORIGINS.index)
