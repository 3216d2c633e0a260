"""What a plan maximises: throughput, efficiency or priority (O_j of the paper)."""

from __future__ import annotations

from bftd import learn

Points = tuple[tuple[int, float], ...]


def values(points: Points, objective: str, weight: float) -> tuple[Points, float]:
    """The curve of objective values for a curve in samples/s, and the weight that goes with it.

    throughput counts samples/s of all trainers alike; efficiency counts speed-up relative to one node, so that a
    small model weighs as much as a large one; priority is the same times the trainer's weight.
    """
    if objective == "throughput":
        return points, 1.0
    one_node = learn.rate(points, 1)
    relative = tuple((nodes, rate / one_node if one_node > 0 else 0.0) for nodes, rate in points)
    return relative, weight if objective == "priority" else 1.0
