"""Demands on the figures of each recipe that have one cause: a few streams cannot judge waits and makespans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.impact.recipe import BF30, DEFAULT, SLOW

_Value = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True, slots=True)
class Demand:
    """One bound on a figure; `bounds` has one for each recipe that it is for."""

    text: str
    value: _Value
    bounds: Mapping[str, float]
    at_least: bool = False


def _rpc_per_poll(figures: Mapping[str, Any]) -> float | None:
    """As precise as its bound: a run ends within a poll."""
    value = figures["rpc_per_poll"]
    return None if value is None else round(float(value), 2)


def _everywhere(bound: float) -> dict[str, float]:
    return {recipe.name: bound for recipe in (DEFAULT, BF30, SLOW)}


DEMANDS: tuple[Demand, ...] = (
    Demand("slots lost", lambda f: f["slots_lost"], {DEFAULT.name: 0}),
    Demand(
        "slots lost, of jobs that start on harvested nodes",
        lambda f: f["slots_lost_share"],
        {BF30.name: 0.01, SLOW.name: 0.01},
    ),
    Demand("preemption to start, mean (s)", lambda f: f["preempt_to_start_s"]["mean"], {DEFAULT.name: 0.5}),
    Demand("preemption to start, most (s)", lambda f: f["preempt_to_start_s"]["max"], {DEFAULT.name: 2.0}),
    Demand(
        "started by backfill after a preemption, of jobs that start on harvested nodes",
        lambda f: f["backfill_preempted_share"],
        _everywhere(0.1),
    ),
    Demand("delay by starts a cycle late, a job (s)", lambda f: f["late_s_per_job"], _everywhere(0.1)),
    Demand(
        "held",
        lambda f: f["harvested_share"],
        {DEFAULT.name: 0.85, BF30.name: 0.85, SLOW.name: 0.74},
        at_least=True,
    ),
    Demand(
        "held while a queue stands",
        lambda f: f["harvested_share_queue"],
        {DEFAULT.name: 0.8, BF30.name: 0.8},
        at_least=True,
    ),
    Demand("requests to slurmctld a poll", _rpc_per_poll, _everywhere(4.07)),
)


def judged(recipe: str, figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each demand on a recipe with its value, its bound, and whether it is met; None where the runs do not say."""
    rows = []
    for demand in DEMANDS:
        if recipe not in demand.bounds:
            continue
        value, bound = demand.value(figures), demand.bounds[recipe]
        met = None
        if value is not None:
            met = value >= bound if demand.at_least else value <= bound
        rows.append({"demand": demand.text, "value": value, "bound": bound, "met": met, "at_least": demand.at_least})
    return rows
