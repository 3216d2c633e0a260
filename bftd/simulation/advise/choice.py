"""A setting chosen from a grid: the Pareto curve of efficiency against run time, and a rule to choose from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal

from bftd.base.errors import UsageError
from bftd.simulation.advise.sweep import SweepPoint

Prefer = Literal["efficiency", "balanced", "runtime"]

# The part of the best setting's node-hours that must remain when run times are shortened.
KEEP: dict[Prefer, float] = {"efficiency": 0.99, "balanced": 0.95, "runtime": 0.8}
# Efficiencies this close are the same to an administrator; the smaller t_fwd resizes less.
ALIKE = 0.005


def pareto(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return the points that no other beats in efficiency or mean run time without losing in the other, by run time."""
    curve: list[SweepPoint] = []
    for point in sorted(points, key=lambda point: (point.mean_runtime_s, -point.efficiency, point.t_fwd_s)):
        if not curve or point.efficiency > curve[-1].efficiency:
            curve.append(point)
    return tuple(curve)


def recommend(points: Sequence[SweepPoint], prefer: Prefer = "balanced") -> tuple[SweepPoint, str]:
    """Return the point to use, and the reason in one sentence.

    Among the settings that recover at least `KEEP[prefer]` of the most node-hours that any setting recovers, take the
    pj_max with the shortest mean run time; with that pj_max, the smallest t_fwd within half a point of its best
    efficiency. Raise `UsageError` if no setting recovers anything.
    """
    best = max(points, key=lambda point: point.efficiency)
    if best.efficiency <= 0 or not isfinite(best.mean_runtime_s):
        raise UsageError(
            "no setting recovers anything: the trainers are too large or too slow to resize for this trace"
        )
    kept = [point for point in points if point.efficiency >= KEEP[prefer] * best.efficiency]
    fastest = min(kept, key=lambda point: (point.mean_runtime_s, point.t_fwd_s))
    siblings = [point for point in kept if point.pj_max == fastest.pj_max]
    top = max(point.efficiency for point in siblings)
    chosen = min((p for p in siblings if p.efficiency >= top - ALIKE), key=lambda point: point.t_fwd_s)
    return chosen, _reason(chosen, best, prefer, len({point.t_fwd_s for point in points}))


def _reason(chosen: SweepPoint, best: SweepPoint, prefer: Prefer, t_fwds: int) -> str:
    first = (
        f"of all settings that recover at least {KEEP[prefer]:.0%} of the most node-hours possible, those with pj_max "
        f"{chosen.pj_max} have the shortest run times"
    )
    if chosen.pj_max != best.pj_max:
        worth, time = chosen.efficiency / best.efficiency, chosen.mean_runtime_s / best.mean_runtime_s
        first += f" ({worth:.1%} of what pj_max {best.pj_max} recovers, in {time:.0%} of the time)"
    if t_fwds == 1:
        return first
    return f"{first}; of them t_fwd {chosen.t_fwd_s:g} s is the smallest within half a point of the best efficiency"


def at_edge(chosen: SweepPoint, points: Sequence[SweepPoint]) -> list[str]:
    """Return advice to try more settings if a better one may lie beyond those that were tried."""
    pj_maxes, t_fwds_s = {point.pj_max for point in points}, {point.t_fwd_s for point in points}
    best_t_fwd_s = max((p for p in points if p.pj_max == chosen.pj_max), key=lambda point: point.efficiency).t_fwd_s
    found = []
    if len(pj_maxes) > 1 and chosen.pj_max == max(pj_maxes):
        found.append(f"pj_max {chosen.pj_max} is the largest that was tried: try larger ones with --pj-max")
    elif chosen.pj_max == min(pj_maxes) > 1:
        found.append(f"pj_max {chosen.pj_max} is the smallest that was tried: try smaller ones with --pj-max")
    if len(t_fwds_s) > 1 and chosen.t_fwd_s == max(t_fwds_s):
        found.append(f"t_fwd {chosen.t_fwd_s:g} s is the largest that was tried: try larger ones with --t-fwd")
    elif len(t_fwds_s) > 1 and best_t_fwd_s == min(t_fwds_s):
        found.append(
            f"t_fwd {best_t_fwd_s:g} s is the best and the smallest that was tried: try smaller ones with --t-fwd"
        )
    return found
