"""Demands on the figures of each recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.impact.recipe import BF30, DEFAULT, SLOW

_Value = Callable[[Mapping[str, Any]], float | None]

_BESIDE_A_A_S = 0.5
"""The difference to runs without bftd may lie so far beyond where that of two such runs lies."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One bound on a figure; `bounds` has one for each recipe that it is for, as a number or of the figures."""

    text: str
    value: _Value
    bounds: Mapping[str, float | _Value]
    at_least: bool = False


def _upper(figures: Mapping[str, Any]) -> float | None:
    interval = figures["aa_mean_diff_interval_s"]
    return None if interval is None else float(interval[1]) + _BESIDE_A_A_S


def _rpc_per_poll(figures: Mapping[str, Any]) -> float | None:
    """As precise as its bound: a run ends within a poll."""
    value = figures["rpc_per_poll"]
    return None if value is None else round(float(value), 2)


def _everywhere(bound: float | _Value) -> dict[str, float | _Value]:
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
    Demand("B - A, mean (s), within A - A + 0.5 s", lambda f: f["ba_mean_diff_s"], _everywhere(_upper)),
    Demand("B - displaced, mean (s), within A - A + 0.5 s", lambda f: f.get("bd_mean_diff_s"), _everywhere(_upper)),
    Demand("makespan longer by", lambda f: f["makespan_longer_share"], _everywhere(0.01)),
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
        given = demand.bounds[recipe]
        value, bound = demand.value(figures), given(figures) if callable(given) else given
        met = None
        if value is not None and bound is not None:
            met = value >= bound if demand.at_least else value <= bound
        rows.append({"demand": demand.text, "value": value, "bound": bound, "met": met, "at_least": demand.at_least})
    return rows
