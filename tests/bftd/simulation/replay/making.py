"""Trainers and traces small enough to be worked out by hand."""

from __future__ import annotations

from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.trace import Trace
from tests.bftd.simulation.trace.making import trace_of

__all__ = ["linear", "trace_of", "week"]


def linear(name: str, **fields: object) -> SimTrainer:
    """A trainer on 1 to 4 nodes with 10 samples/s a node, R_up 3 s and R_down 2 s, and all but endless work."""
    curve = tuple((nodes, 10.0 * nodes) for nodes in range(5))
    plain = {
        "nodes_min": 1,
        "nodes_max": 4,
        "work_samples": 1e9,
        "curve": curve,
        "objective": curve,
        "up_cost_s": 3.0,
        "down_cost_s": 2.0,
    }
    return SimTrainer(name=name, **(plain | fields))  # type: ignore[arg-type]


def week() -> Trace:
    """Ten events on four nodes, an hour in all."""
    return trace_of(
        {
            "n1": [(0.0, 600.0), (900.0, 3601.0)],
            "n2": [(0.0, 1200.0), (1500.0, 2400.0)],
            "n3": [(300.0, 1800.0), (2100.0, 3601.0)],
            "n4": [(2700.0, 3000.0)],
        },
        3600.0,
    )
