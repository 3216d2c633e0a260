"""The trainers of the daemon's past, as a replay takes them.

Work and speed are in node-seconds, which a dedicated node does in a second at the trainer's best size: samples of
different networks cannot be added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from bftd.core.planning.objective import values
from bftd.simulation.advise.units import best_rate
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.effect.past import Past
from milp import Points

# The remaining work of a trainer that has not ended: more than it could do on all nodes in all of the time.
_ENDLESS = 10.0


def trainers_of(rows: Iterable[Mapping[str, Any]], past: Past, objective: str) -> tuple[SimTrainer, ...]:
    """Return the trainers that had work to do, planned by `objective` as in the daemon, in order of arrival."""
    made = (_trainer(number, item, past, objective) for number, item in enumerate(rows))
    return tuple(sorted((each for each in made if each is not None), key=lambda each: each.submit_s))


def warm_up_s(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the time from the lease of a node until it takes part: the median of the trainers."""
    known = [float(item["warm_up_s"]) for item in rows]
    return median(known) if known else 0.0


def _trainer(number: int, row: Mapping[str, Any], past: Past, objective: str) -> SimTrainer | None:
    low, high = int(row["nodes_min"]), int(row["nodes_max"])
    curve: Points = ((0, 0.0), *((int(nodes), float(rate)) for nodes, rate in row["curve"]))
    if len(curve) == 1:  # as the daemon assumes of a trainer without a known curve
        curve = ((0, 0.0), (1, 1.0), *([(high, float(high))] if high > 1 else ()))
    plain = SimTrainer(f"{row['id']}-{number}", low, high, 1.0, curve, curve)
    if max(plain.rates) <= 0:
        return None
    unit = best_rate(plain)
    work = _ENDLESS * max(past.trace.duration_s, 1.0) * high
    if row["ended_s"] is not None:
        # a trainer that reported no samples did the work that its pilots had time for
        work = (row["samples"] - row["began_samples"]) / unit if row["curve"] else 0.0
        work = work if work > 0 else float(row["worked_s"])
    if work <= 0:
        return None
    planned, weight = values(curve, objective, float(row["weight"]))
    return replace(
        plain,
        work_samples=work,
        curve=tuple((nodes, rate / unit) for nodes, rate in curve),
        objective=tuple((nodes, worth * weight) for nodes, worth in planned),
        submit_s=past.at(float(row["arrived_s"])),
        up_cost_s=float(row["up_cost_s"]),
        down_cost_s=float(row["down_cost_s"]),
    )
