"""A trace from Slurm's accounting: a node is idle when no job, fault or reservation occupies it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from bftd.base.format import some
from bftd.simulation.trace.accounting import busy_periods, node_inventory
from bftd.simulation.trace.accounting.sacct import Accounts, Period
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.model import Trace

# A site with idle nodes to lend starts and ends jobs more often than this.
_SILENCE_S = 3600


@dataclass(frozen=True, slots=True)
class TracePeriod:
    """The time that a trace covers, in unix seconds."""

    start_s: float
    end_s: float


def window(accounts: Accounts, start_s: float | None, end_s: float | None) -> TracePeriod:
    """Return the requested period of the trace, or the longest that the records of one sacct call surely cover.

    sacct lists the jobs that overlap a period, but its output does not name the period. All these jobs end after its
    start, so nothing is missing after the first end in the file. All start before its end, so nothing is missing before
    the last start. Raise TraceError if the resulting period is empty.
    """
    ends = [job.end_s for job in accounts.jobs if math.isfinite(job.end_s)]
    starts = [job.start_s for job in accounts.jobs]
    if not starts and (start_s is None or end_s is None):
        raise TraceError("no job of the file ran: give the period with --since and --until")
    first = start_s if start_s is not None else min(ends, default=min(starts, default=0.0))
    last = end_s if end_s is not None else max(starts, default=0.0)
    if last <= first:
        raise TraceError("the period has no length: give it with --since and --until")
    return TracePeriod(first, last)


def trace(
    accounts: Accounts, nodes: Sequence[str], period: TracePeriod, min_idle_s: float, *, every: bool = False
) -> Trace:
    """Build a trace from periods. Raise TraceError if no node was idle, or none of the jobs ran on `nodes`.

    With `every`, `nodes` are all that the cluster has today. Other nodes that had jobs were part of it once, and are in
    the trace for that time.
    """
    listed = len(nodes)
    if every:
        nodes = [*nodes, *_gone(accounts, nodes)]
    index = {name: place for place, name in enumerate(nodes)}
    duration_s = period.end_s - period.start_s
    strangers: set[str] = set()
    all_jobs = _spans(accounts.jobs, index, period.start_s, strangers)
    jobs = all_jobs.within(duration_s)
    if accounts.jobs and len(strangers) and not len(jobs.node):
        raise TraceError(
            f"no job ran on the listed nodes in the period, but on {some(sorted(strangers))}: check --nodes"
        )
    away = _spans(accounts.away, index, period.start_s, set())
    everywhere = _spans([_on_all(gap, nodes) for gap in accounts.everywhere], index, period.start_s, set())
    evidence = busy_periods.joined(all_jobs, _spans(accounts.ignored, index, period.start_s, set()), away)
    cut = node_inventory.absence(accounts.members, nodes, listed, evidence, period.start_s, period.end_s)
    absent = _spans(cut.periods, index, period.start_s, set())
    found = busy_periods.idle(busy_periods.joined(jobs, away, everywhere, absent), len(nodes), duration_s, min_idle_s)
    if not len(found.times_s):
        raise TraceError("no node was idle in the period: there is nothing to write")
    notes = (
        accounts.notes
        | cut.notes
        | {
            "jobs": len(jobs.node),
            "ambiguous_times": accounts.dates.ambiguous,
            "nodes_not_listed": len(strangers),
            "overlapping_jobs": busy_periods.overlaps(jobs),
            "short_idle_dropped": found.dropped,
            "idle_throughout": _idle_throughout(found),
            "longest_silence_s": silence_s if (silence_s := _longest_silence_s(jobs, duration_s)) >= _SILENCE_S else 0,
            "gap_s": _covered_s(everywhere.within(duration_s), len(nodes)),
        }
    )
    return Trace(
        nodes=tuple(nodes),
        times_s=found.times_s,
        node=found.node,
        idle=found.idle,
        duration_s=duration_s,
        start=iso(period.start_s),
        source="sacct",
        notes={name: int(count) for name, count in notes.items() if count},
    )


def iso(time_s: float) -> str:
    """Format a time as an ISO date in UTC."""
    precision = "seconds" if time_s == int(time_s) else "milliseconds"
    return datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec=precision)


def _gone(accounts: Accounts, nodes: Sequence[str]) -> list[str]:
    """Return, by name, the nodes that had jobs but are no longer part of the cluster."""
    known, found = frozenset(nodes), set[str]()
    for names in {period.nodes for period in (*accounts.jobs, *accounts.ignored)}:
        found.update(name for name in names if name not in known)
    return sorted(found)


def _on_all(gap: Period, nodes: Sequence[str]) -> Period:
    return Period(tuple(nodes), gap.start_s, gap.end_s)


def _spans(
    periods: Sequence[Period], index: Mapping[str, int], zero_s: float, strangers: set[str]
) -> busy_periods.Spans:
    """Return one row for each node of each period; nodes that are not listed are added to `strangers`."""
    places: dict[tuple[str, ...], NDArray[np.int32]] = {}
    for period in periods:
        if period.nodes not in places:
            strangers.update(name for name in period.nodes if name not in index)
            known = [index[name] for name in period.nodes if name in index]
            places[period.nodes] = np.array(known, dtype=np.int32)
    parts = [places[period.nodes] for period in periods]
    counts = [len(part) for part in parts]
    return busy_periods.Spans(
        np.concatenate([np.empty(0, dtype=np.int32), *parts]),
        np.repeat(np.array([period.start_s - zero_s for period in periods]), counts),
        np.repeat(np.array([period.end_s - zero_s for period in periods]), counts),
    )


def _idle_throughout(found: busy_periods.Idle) -> int:
    """Count the nodes that are idle at the start and never leave."""
    return len(np.setdiff1d(found.node[found.times_s == 0], found.node[~found.idle]))


def _longest_silence_s(jobs: busy_periods.Spans, duration_s: float) -> int:
    """Return the longest time in which no job starts or ends: the accounting may have a hole there."""
    edges = np.array([0.0, duration_s])
    return int(np.diff(np.unique(np.concatenate([edges, jobs.starts_s, jobs.ends_s]))).max())


def _covered_s(everywhere: busy_periods.Spans, nodes: int) -> int:
    """Return the seconds in which all nodes were away together."""
    first = busy_periods.Spans(
        everywhere.node[everywhere.node == 0],
        everywhere.starts_s[everywhere.node == 0],
        everywhere.ends_s[everywhere.node == 0],
    )
    if not nodes or not len(first.node):
        return 0
    order = np.argsort(first.starts_s)
    starts_s, ends_s = first.starts_s[order], np.maximum.accumulate(first.ends_s[order])
    holes_s = np.maximum(0.0, starts_s[1:] - ends_s[:-1]).sum()
    return int(ends_s[-1] - starts_s[0] - holes_s)
