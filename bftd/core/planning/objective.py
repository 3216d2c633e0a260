"""The objective of a plan: throughput, efficiency or priority (O_j of the paper)."""

from __future__ import annotations

from functools import lru_cache

import milp
from milp import Points


@lru_cache(maxsize=1 << 10)
def values(
    points: Points, objective: str, weight: float, one_node: float | None = None, *, measured: bool = False
) -> tuple[Points, float]:
    """Return the curve of objective values for a curve in samples/s, and the weight that goes with it.

    throughput counts samples/s of all trainers alike. efficiency counts speed-up relative to one node, so that a small
    model weighs as much as a large one. priority is the same times the trainer's weight. `one_node` is the rate of one
    node if it is not that of this curve: with several classes of nodes, that of the fastest. No speed-up counts for
    more than the number of nodes, since a trainer that claims more would get everything, unless the curve is known to
    be `measured`.
    """
    if objective == "throughput":
        return points, 1.0
    one_node = milp.interpolate(points, 1) if one_node is None else one_node
    relative = tuple((nodes, rate / one_node if one_node > 0 else 0.0) for nodes, rate in points)
    if not measured:
        relative = tuple((nodes, min(float(nodes), speed_up)) for nodes, speed_up in relative)
    return relative, weight if objective == "priority" else 1.0


def after_warm_up(points: Points, held: int, share: float) -> Points:
    """Return the curve over the forward-looking time if nodes above `held` work only after their warm-up.

    `share` is the warm-up as a part of t_fwd: O(N) counts as O(held) + (1 - share) (O(N) - O(held)) above `held`. The
    paper charges a resize's stall (eq. 13-16). But a node that changes hands is lost by one trainer at once and gained
    by the other only later; without this, noise in two measured curves trades nodes to and fro.
    """
    if not points or share <= 0:
        return points
    now = milp.interpolate(points, held)
    sizes = sorted({nodes for nodes, _ in points} | ({held} if held <= points[-1][0] else set()))
    return tuple(
        (nodes, rate if nodes <= held else now + (1.0 - min(share, 1.0)) * (rate - now))
        for nodes, rate in ((nodes, milp.interpolate(points, nodes)) for nodes in sizes)
    )
