"""The ranking of runs: the one that ends first, those that end by a deadline, and the reason for the winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sizing.choice.limits import hours, words
from sizing.choice.runs import JobRun, best_of_shapes

MOST_ASKED = 16
"""Most requests of one `bft size choose`: slurmctld plans its queue for each."""

By = Literal["end", "gpu-hours"]
"""The measure that the first run has least of.

By default it is GPU-hours, among the runs that may end as early as any.
"""

_SAME_S = 60.0
_SAME_SHARE = 0.01
"""Runs that end within a minute, or a hundredth of their length, end together: then fewer GPU-hours are better."""

_SAME_HOURS = 0.1
"""GPU-hours within this share of each other count as equal: then the earlier end is better."""


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Slurm's answer to one request: the start time, None if it refuses, and its own words."""

    start_s: float | None
    words: str


def ask(
    runs: Sequence[JobRun],
    slurm: Callable[[JobRun], StartAnswer],
    now_s: float,
    top: int = 3,
    most: int = MOST_ASKED,
    deadline_s: float | None = None,
    by: By | None = None,
) -> tuple[JobRun, ...]:
    """Return the best run of each request with Slurm's answer on it, as far as Slurm was asked.

    Slurm is asked about the shortest run of each partition and type, then the others by length, until `top` runs are
    known to end before any other could if it started at once, and by the deadline if there is one, and no other could
    still be the first of `ranked`; by GPU-hours about those with the fewest. If Slurm refuses one, the smallest request
    for the same GPUs shows whether it refuses all: then they are all refused in the same words.
    """
    waiting = list(best_of_shapes(runs))
    order = _firsts(waiting)
    if by == "gpu-hours":
        order = sorted(range(len(waiting)), key=lambda at: waiting[at].gpu_hours.value)
    answered: dict[int, JobRun] = {}
    closed: dict[tuple[str, str], str] = {}
    asked = 0

    def put(at: int) -> bool:
        nonlocal asked
        asked += 1
        run, answer = waiting[at], slurm(waiting[at])
        answered[at] = replace(run, start_s=answer.start_s, said=answer.words, refused=answer.start_s is None)
        return not answered[at].refused

    for at in order:
        key = _kind(waiting[at])
        if at in answered or key in closed:
            continue
        taken = [run for run in answered.values() if not run.refused]
        useful = taken if deadline_s is None else by_deadline(taken, deadline_s, now_s)
        ends = sorted(useful, key=lambda run: run.ends_s(now_s).value)
        hopeless = len(ends) >= top and (
            by == "gpu-hours"
            or now_s + waiting[at].run_s.value
            >= max(ends[top - 1].ends_s(now_s).value + _together_s(waiting[at]), _reach_s(ends[0], now_s, by))
        )
        if asked >= most or hopeless:
            continue
        if put(at) or any(_kind(run) == key and not run.refused for run in answered.values()):
            continue
        same = [other for other, run in enumerate(waiting) if _kind(run) == key and other not in answered]
        small = min(same, key=lambda other: waiting[other].gpus, default=None)
        if small is None or not put(small):
            closed[key] = answered[at].said
    for at, run in enumerate(waiting):
        if at not in answered and _kind(run) in closed:
            answered[at] = replace(run, said=closed[_kind(run)], refused=True)
    return tuple(answered.get(at, run) for at, run in enumerate(waiting))


def ranked(runs: Sequence[JobRun], now_s: float, by: By | None = None) -> tuple[JobRun, ...]:
    """Return the runs with a known start, or all if there are none, by their end; by GPU-hours those that end together.

    Runs end together if they end within a minute of the first one; also, unless `by` is "end", if they are expected to
    end while that one may still run; and all do by GPU-hours. Otherwise GPU-hours within a tenth count as equal.
    """
    taken = [run for run in runs if not run.refused]
    known = [run for run in taken if run.start_s is not None]

    def end_s(run: JobRun) -> float:
        return run.ends_s(now_s).value

    left = sorted(known or taken, key=lambda run: (end_s(run), run.gpu_hours.value))
    order = []
    while left:
        reach_s = _reach_s(left[0], now_s, by)
        together = [run for run in left if end_s(run) <= reach_s]
        least = min(run.gpu_hours.value for run in together) * (1.0 if by == "gpu-hours" else 1.0 + _SAME_HOURS)
        best = min((run for run in together if run.gpu_hours.value <= least), key=end_s)
        left.remove(best)
        order.append(best)
    return tuple(order)


def by_deadline(best: Sequence[JobRun], deadline_s: float, now_s: float) -> tuple[JobRun, ...]:
    """Return the runs that end in time even at their slowest, and are not cut off by a time limit before."""
    return tuple(run for run in best if run.ends_s(now_s).high <= deadline_s and not run.may_be_cut)


def misses(best: Sequence[JobRun], deadline_s: float, now_s: float) -> str:
    """Return the sentence on how far the best run misses a deadline that none of the runs (at least one) meets."""
    near = min(best, key=lambda run: run.ends_s(now_s).high)
    ends = near.ends_s(now_s)
    late, usual = ends.high - deadline_s, ends.value - deadline_s
    if late <= 0:
        return f"{near.shape.name} would end in time, but the partition's time limit may end it first"
    expected = f"{words(usual)} after it" if usual > 0 else f"{words(-usual)} before it"
    at_worst = f"{words(late)} after it at worst ({ends.origin})"
    return f"the nearest, {near.shape.name}, ends {at_worst}, and is expected {expected}"


def why(best: Sequence[JobRun], now_s: float, by: By | None = None) -> str:
    """Return one or two sentences on the first ranked run, against the winners by speed, by start and by cost."""
    first, others = best[0], best[1:]
    started = first.start_s is not None
    ends = first.ends_s(now_s)
    soonest = min(best, key=lambda run: run.ends_s(now_s).value)
    sooner_s = ends.value - soonest.ends_s(now_s).value
    among = "" if by == "gpu-hours" else " of those that may end first"
    least = min(run.gpu_hours.value for run in best if run.ends_s(now_s).value <= _reach_s(soonest, now_s, by))
    fewest = "the fewest" if first.gpu_hours.value <= least else "nearly the fewest"
    merit = f"takes {fewest} GPU-hours{among}"
    if sooner_s <= _together_s(soonest):
        merit = "ends first" if sooner_s <= 0 else "ends as soon as any"
    said = f"{first.shape.name} {merit}: it {_starts(first, now_s)} and runs {words(first.run_s.value)}"
    if not others:
        return f"{said}; there is no other choice."
    fastest = min(others, key=lambda run: run.run_s.value)
    earliest = min(others, key=lambda run: run.start_s or now_s)
    clauses = []
    if sooner_s > _together_s(soonest):
        cost = soonest.gpu_hours
        clauses.append(
            f"{soonest.shape.name} is expected to end {words(sooner_s)} earlier, for {hours(cost.value)} GPU-hours"
        )
    elif fastest.run_s.value + _together_s(first) < first.run_s.value:
        clauses.append(
            f"{fastest.shape.name} runs {words(first.run_s.value - fastest.run_s.value)} less"
            + (f" but starts {_later(fastest, first, now_s)}" if started else "")
        )
    if sooner_s <= _together_s(soonest) and started and (earliest.start_s or 0) + _SAME_S < (first.start_s or 0):
        clauses.append(
            f"{earliest.shape.name} starts {words((first.start_s or 0) - (earliest.start_s or 0))} earlier "
            f"but runs {words(earliest.run_s.value - first.run_s.value)} longer"
        )
    if not clauses:
        gap = others[0].ends_s(now_s).value - ends.value
        after = f"ends {words(gap)} later" if gap >= _SAME_S else "ends at the same time"
        clauses.append(f"the next, {others[0].shape.name}, {after}")
    said += f", while {' and '.join(clauses)}."
    cost, against = first.gpu_hours, others[0].gpu_hours
    said += f" It takes {hours(cost.value)} GPU-hours ({cost.origin}), the next {hours(against.value)} "
    return f"{said}({against.origin}).{_caution(best, now_s)}"


def _caution(best: Sequence[JobRun], now_s: float) -> str:
    """Return a sentence on the first run with a measured time, if the first one's time is assumed."""
    first = best[0]
    sure = next((run for run in best if run.run_s.origin != "assumed"), None)
    if first.run_s.origin != "assumed" or sure is None:
        return ""
    gap_s = sure.ends_s(now_s).value - first.ends_s(now_s).value
    when = f"{words(gap_s)} later" if gap_s >= _SAME_S else "at the same time"
    return f" Its time is only assumed: the first whose time rests on measurements, {sure.shape.name}, ends {when}."


def _firsts(waiting: Sequence[JobRun]) -> list[int]:
    """Return the indices of runs, given by length: the shortest of each partition and type, then the others."""
    first: dict[tuple[str, str], int] = {}
    for at, run in enumerate(waiting):
        first.setdefault(_kind(run), at)
    return [*first.values(), *(at for at in range(len(waiting)) if at not in set(first.values()))]


def _reach_s(first: JobRun, now_s: float, by: By | None) -> float:
    """Return the time by which a run has to end, to end together with the first one."""
    if by == "gpu-hours":
        return math.inf
    ends = first.ends_s(now_s)
    together_s = ends.value + _together_s(first)
    return together_s if by == "end" else max(together_s, ends.high)


def _together_s(run: JobRun) -> float:
    return max(_SAME_S, _SAME_SHARE * run.run_s.value)


def _kind(run: JobRun) -> tuple[str, str]:
    return run.partition, run.gpu_type


def _starts(run: JobRun, now_s: float) -> str:
    if run.start_s is None:
        return "would start now for all that is known"
    wait_s = run.start_s - now_s
    return "starts at once" if wait_s < _SAME_S else f"starts in {words(wait_s)}"


def _later(run: JobRun, first: JobRun, now_s: float) -> str:
    gap = max(now_s, run.start_s or now_s) - max(now_s, first.start_s or now_s)
    return f"{words(gap)} later" if gap >= _SAME_S else "no earlier"
