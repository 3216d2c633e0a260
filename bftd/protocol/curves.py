"""Samples/s by number of nodes, as a driver reports them: known to its user, or estimated beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bftd.protocol.bounds import (
    CURVE_POINTS_MOST,
    ESTIMATE_CLASSES_MOST,
    ESTIMATE_POINTS_MOST,
    ESTIMATE_RATE_LEAST,
    NODES_MOST,
)
from bftd.protocol.errors import Malformed
from bftd.protocol.fields import Fields

# Samples/s by number of nodes, nodes increasing.
Points = tuple[tuple[int, float], ...]
# The origin of an estimate, as in `sizing.base.estimate`, from the best to the worst.
Origin = Literal["measured", "traced", "formula", "interpolated", "assumed"]
ORIGINS: tuple[Origin, ...] = ("measured", "traced", "formula", "interpolated", "assumed")


@dataclass(frozen=True, slots=True)
class CurveEstimate:
    """A trainer's estimated samples/s on the nodes of one class: positive rates that do not decrease.

    `origin` says how reliable the estimate is, and `basis` in a few words what it was derived from.
    """

    node_class: str
    points: Points
    origin: Origin = "assumed"
    basis: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `from_json` reads."""
        return {"class": self.node_class, **to_fields(self.points), "origin": self.origin, "basis": self.basis}

    @classmethod
    def from_json(cls, data: object) -> CurveEstimate:
        """Read one item of a list of estimates; raises Malformed."""
        if not isinstance(data, dict):
            raise Malformed("each of estimates must be a JSON object")
        fields = Fields(data, "estimate")
        name = fields.name("class")
        points = read(fields, ESTIMATE_POINTS_MOST, "estimate")
        rates = [rate for _, rate in points]
        if (
            not points
            or min(rates) < ESTIMATE_RATE_LEAST
            or any(later < earlier for earlier, later in itertools.pairwise(rates))
        ):
            raise fields.wrong("samples_per_s", f"{ESTIMATE_RATE_LEAST:g} or more, and never less on more nodes")
        return cls(name, points, fields.text("origin", choices=ORIGINS), fields.text("basis", ""))


def estimates(fields: Fields, name: str) -> tuple[CurveEstimate, ...]:
    """Read the estimates in a field, one for each class of nodes; raises Malformed."""
    found = tuple(map(CurveEstimate.from_json, fields.items(name, ESTIMATE_CLASSES_MOST)))
    if len({each.node_class for each in found}) < len(found):
        raise fields.fault(f"{name} has one class of nodes twice")
    return found


def to_fields(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return the two fields that `read` reads."""
    return {"nodes": [count for count, _ in points], "samples_per_s": [rate for _, rate in points]}


def read(fields: Fields, most: int = CURVE_POINTS_MOST, where: str = "trainer: curve") -> Points:
    """Read the points in the fields `nodes` and `samples_per_s`, at least one; raises Malformed.

    A point of no nodes is left out. `where` precedes the error for a point.
    """
    counts, rates = fields.items("nodes", most), fields.items("samples_per_s", most)
    if len(counts) != len(rates) or not counts:
        raise fields.wrong("nodes", "as many as samples_per_s, at least one")
    points = tuple(_point(count, rate, where) for count, rate in zip(counts, rates, strict=True))
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(points)):
        raise fields.wrong("nodes", "in increasing order")
    return tuple(point for point in points if point[0] > 0)


def _point(count: object, rate: object, where: str) -> tuple[int, float]:
    point = Fields({"nodes": count, "samples_per_s": rate}, where)
    return point.whole("nodes", maximum=NODES_MOST), point.number("samples_per_s")
