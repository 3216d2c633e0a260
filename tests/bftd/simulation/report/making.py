"""A small made-up site, and results as `bft replay` and `bft advise` store them."""

from __future__ import annotations

import copy
import random
from typing import Any

from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.trace import Trace
from tests.bftd.simulation.trace.making import trace_of

HOUR_S = 3600.0
SITE = 'Tiny <b>site</b> & "sons"'

_RESULT: dict[str, Any] = {
    "efficiency": 0.8,
    "outcome_samples": 8e6,
    "static_outcome_samples": 1e7,
    "eq_nodes": 5.0,
    "node_hours": 60.0,
    "training_node_hours": 51.0,
    "held_node_hours": 54.0,
    "events": 40,
    "rescale_cost_samples": 5e5,
    "preempt_cost_samples": 2e5,
    "preemptions": 12,
    "trainers_completed": 3,
    "mean_runtime_s": {"net": 5400.0},
    "t_fwd_preempted_share": 0.3,
    "wall_s": 1.0,
    "solve_ms": {"p50": 0.4, "p99": 1.0, "max": 2.0},
    "run": {
        "versions": {"bftd": "0"},
        "arguments": {
            "t_fwd_s": 120.0, "pj_max": 10, "policy": "milp", "accounting": "exact", "hours": None,
            "scavenger_nodes": None, "solver": "auto", "mends": None,
        },
        "inputs": {
            "trace": {"source": SITE, "sha256": "ab" * 32, "nodes": 16},
            "trainers": {"sha256": "cd" * 32, "count": 2},
        },
    },
}  # fmt: skip


def result(*, series: bool = True, policy: str = "milp", t_fwd_s: float = 120.0, **fields: Any) -> dict[str, Any]:
    """A stored replay of twelve hours."""
    made = copy.deepcopy(_RESULT) | fields
    made["run"]["arguments"] |= {"policy": policy, "t_fwd_s": t_fwd_s}
    if series:
        made["series"] = [
            {"start_s": start_h * HOUR_S, "efficiency": made["efficiency"], "outcome_samples": 4e6, "node_hours": 30.0,
             "training_node_hours": 25.5, "held_node_hours": 27.0}
            for start_h in (0.0, 6.0)
        ]  # fmt: skip
    return made


def advice() -> dict[str, Any]:
    """A stored advice for the same trace; of its points (10, 10) is beaten."""
    grid = [
        {"t_fwd_s": t_fwd_s, "pj_max": pj_max, "efficiency": efficiency, "u": u, "mean_runtime_s": runtime_s,
         "node_hours_per_week": 840 * efficiency}
        for t_fwd_s, pj_max, efficiency, u, runtime_s in (
            (120.0, 5, 0.6, 0.85, 3600.0), (10.0, 10, 0.55, 0.7, 7300.0), (120.0, 10, 0.7, 0.8, 7200.0),
        )
    ]  # fmt: skip
    run = copy.deepcopy(_RESULT["run"])
    return {
        "recommended": {"t_fwd_s": 120.0, "pj_max": 5},
        "grid": grid,
        "pareto": [grid[0], grid[2]],
        "expected": {"node_hours_per_week": 504.0, "low": 450.0, "high": 560.0, "confidence": 0.9},
        "run": run,
    }


def trace(nodes: int = 16, hours: float = 14.0, source: str = SITE) -> Trace:
    """Some nodes that come and go; the same ones every time."""
    draw = random.Random(7)
    periods = {}
    for number in range(nodes):
        at_s, idle = draw.uniform(0, 3000.0), []
        while at_s < hours * HOUR_S:
            end_s = at_s + draw.lognormvariate(7.0, 1.2)
            idle.append((round(at_s), round(end_s) + 1))
            at_s = end_s + 2 + draw.expovariate(1 / 5000)
        periods[f"n{number:02d}"] = idle
    return trace_of(periods, hours * HOUR_S, source=source, start="2026-01-05 00:00:00")


def trainers() -> tuple[SimTrainer, ...]:
    """Enough short ones that some are completed."""
    curve = ((0, 0.0), (1, 100.0), (2, 190.0), (4, 350.0), (8, 600.0))
    return tuple(
        SimTrainer(f"net-{number}", 1, 8, 1e6, curve, curve, up_cost_s=18.0, down_cost_s=12.0) for number in range(40)
    )
