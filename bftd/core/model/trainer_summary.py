"""A trainer's summary for replays: sizes, curve, resize costs, history."""

from __future__ import annotations

from typing import Any

from bftd.core.model.domain import Trainer
from bftd.core.scaling import learning

# A curve has at most this many points: it bends slowly, and the ledger holds it once for each trainer.
_POINTS_MOST = 16


def of(trainer: Trainer) -> dict[str, Any]:
    """Return a trainer's summary as JSON; a few hundred bytes.

    `curve` is of (nodes, samples/s) as plans use it, [] if nothing is known of its speed. Costs are those at the
    largest size at which it was seen, in seconds. `worked_s` are the node-seconds of its pilots that have ended.
    """
    known, sizes = trainer.knowledge, trainer.sizes
    usual = max((nodes for nodes, _ in known.seen), default=sizes.low)
    return {
        "arrived_s": trainer.arrived_s,
        "nodes_min": sizes.low,
        "nodes_max": sizes.high,
        "weight": trainer.request.weight,
        "curve": _thinned(trainer) if known.rate_per_node else [],
        "up_cost_s": known.up_cost_s(usual),
        "down_cost_s": known.down_cost_s(usual),
        "warm_up_s": known.warm_up_s,
        "samples": trainer.samples,
        "worked_s": trainer.worked_s,
    }


def _thinned(trainer: Trainer) -> list[list[float]]:
    """Return the curve without (0, 0), reduced to the first, the last and some points between."""
    points = learning.curve(trainer.knowledge, trainer.sizes.high)[1:]
    if len(points) > _POINTS_MOST:
        last = len(points) - 1
        points = tuple(points[round(place * last / (_POINTS_MOST - 1))] for place in range(_POINTS_MOST))
    return [[nodes, float(f"{rate:.4g}")] for nodes, rate in points]
