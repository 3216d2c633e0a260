"""A trainer's objective as a function of its number of nodes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from milp import fields
from milp.errors import ProblemError

# (number of nodes, value) pairs in ascending order of nodes.
Points = tuple[tuple[int, float], ...]


def interpolate(points: Points, nodes: int) -> float:
    """Return the value at `nodes`: linear between points, constant outside them, 0 without points."""
    if not points:
        return 0.0
    after = bisect_right(points, (nodes, math.inf))
    if after == len(points):
        return points[-1][1]
    if after == 0:
        return points[0][1]
    return _on_line(*points[after - 1], *points[after], nodes)


def _on_line(left: int, low: float, right: int, high: float, nodes: int) -> float:
    return low + (high - low) * (nodes - left) / (right - left)


@dataclass(frozen=True)
class Curve:
    """A trainer's objective per second against its number of nodes, O_j of equations (11)-(12).

    Piecewise linear between the points, constant beyond the last one; starts at (0, 0). It may be non-concave and may
    fall. `values` is in objective units per second, usually samples/s.
    """

    nodes: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.values):
            raise ProblemError(f"curve: {len(self.nodes)} node counts but {len(self.values)} objective values")
        for count in self.nodes:
            fields.whole("curve.nodes", count, at_least=0)
        for value in self.values:
            fields.real("curve.objective", value)
        if not self.nodes or self.nodes[0] != 0 or self.values[0] != 0:
            raise ProblemError("curve must start with 0 nodes at objective 0")
        fields.increasing("curve.nodes", self.nodes)

    @property
    def points(self) -> Points:
        """The curve as (nodes, value) pairs."""
        return tuple(zip(self.nodes, self.values, strict=True))

    def __call__(self, count: int) -> float:
        # Like `interpolate`, but on the two tuples: zipping them takes longer than the few calls that a plan needs.
        after = bisect_right(self.nodes, count)
        if after == len(self.nodes):
            return self.values[-1]
        return _on_line(self.nodes[after - 1], self.values[after - 1], self.nodes[after], self.values[after], count)


def slowest(curves: Sequence[Curve]) -> Curve:
    """Return the minimum of the curves at every whole count: synchronous training waits for its slowest node."""
    first, *others = dict.fromkeys(curves)
    for other in others:
        first = _lower(first, other)
    return first


def _lower(one: Curve, other: Curve) -> Curve:
    points = sorted({*one.nodes, *other.nodes})
    counts = set(points)
    for left, right in pairwise(points):
        before, after = one(left) - other(left), one(right) - other(right)
        if before * after < 0:  # they cross in between, perhaps not at a whole number
            crossing = left + (right - left) * before / (before - after)
            counts |= {math.floor(crossing), math.ceil(crossing)}
    ordered = tuple(sorted(counts))
    return Curve(ordered, tuple(min(one(count), other(count)) for count in ordered))
