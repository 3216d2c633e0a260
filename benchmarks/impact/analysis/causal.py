"""Effects of harvesting on single jobs, by cause: preemptions, lost slots, starts a cycle late, and earmarks.

Waits of two runs differ for many reasons; these figures have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.impact import earmarks, slots
from benchmarks.impact.analysis import occupancy, stats
from benchmarks.impact.record import SCHEDULERS, EarmarkRow, JobRow, Run

Figures = dict[str, Any]


def figures(a: Sequence[Run], b: Sequence[Run]) -> Figures:
    """The causal figures of runs with bftd, `b`, beside runs without it."""
    jobs = [(run, row) for run in b for row in run.jobs]
    harvested = sum(slots.on_harvested(run, row) for run, row in jobs)
    return {
        "harvested_starts": harvested,
        **_preempting(jobs, harvested),
        **_slots(jobs, harvested, bool(b)),
        **_late(a, b),
        "earmarks": _earmarks(b),
        "cycle_s": spread([cycle_s for run in b for cycle_s in run.cycles_s]),
    }


def spread(values: Sequence[float]) -> Figures:
    """Mean, the 95th percentile, the most and how many."""
    return {
        "mean": stats.mean(values),
        "p95": stats.percentile(values, 0.95),
        "max": max(values, default=None),
        "jobs": len(values),
    }


def _preempting(jobs: Sequence[tuple[Run, JobRow]], harvested: int) -> Figures:
    """From the controller's first preemption for a job to that job's own first line."""
    took = [(row, wait) for run, row in jobs if (wait := slots.preempt_to_start_s(run, row)) is not None]
    by_backfill = sum(row.started_by == "backfill" for row, _ in took)
    return {
        "preempt_to_start_s": {
            **spread([wait for _, wait in took]),
            "by_scheduler": {
                name: spread([wait for row, wait in took if row.started_by == name]) for name in SCHEDULERS
            },
        },
        "give_back_s": give_back([row for _, row in jobs]),
        "preempted_by": dict(Counter(row.preempted_by for row, _ in took if row.preempted_by)),
        "backfill_preempted": by_backfill,
        "backfill_preempted_share": by_backfill / harvested if harvested else None,
    }


def give_back(rows: Sequence[JobRow]) -> Figures:
    """From the controller's first preemption for a job to its allocation of nodes, where the main scheduler made it."""
    took_s = [
        row.allocated_s - row.preempt_s
        for row in rows
        if row.preempt_s is not None and row.allocated_s is not None and row.started_by == "main" and not row.lost
    ]
    return {**spread(took_s), "median": stats.percentile(took_s, 0.5)}


def _slots(jobs: Sequence[tuple[Run, JobRow]], harvested: int, ran: bool) -> Figures:
    lost = [(run, row) for run, row in jobs if slots.lost(run, row)]
    return {
        "slots_lost": len(lost) if ran else None,
        "slots_lost_share": len(lost) / harvested if harvested else None,
        "slots_lost_by": dict(Counter(slots.taker(run, row) for run, row in lost)),
        "slots_lost_why": [_told(run, row, slots.preempt_to_start_s(run, row), row.lost) for run, row in lost],
    }


def _late(a: Sequence[Run], b: Sequence[Run]) -> Figures:
    """Jobs that a backfill cycle would have started and could not: they start a cycle later, or by the main scheduler.

    Without bftd it is so as well where a job before them has not quite left.
    """
    found = {kind: [(run, row) for run in some for row in run.jobs if late(row)] for kind, some in (("a", a), ("b", b))}
    jobs = sum(len(run.jobs) for run in b)
    return {
        "late_starts": {kind: len(rows) for kind, rows in found.items()},
        "late_s_per_job": sum(_late_by_s(run, row) for run, row in found["b"]) / jobs if jobs else None,
        "late_starts_why": [_told(run, row, _late_by_s(run, row), slots.why_late(row)) for run, row in found["b"]],
        "late_starts_per_run": {
            kind: len(found[kind]) / len(some) if some else None for kind, some in (("a", a), ("b", b))
        },
        "late_by_s": {kind: spread([_late_by_s(run, row) for run, row in rows]) for kind, rows in found.items()},
    }


def _late_by_s(run: Run, row: JobRow) -> float:
    return run.waited_until_s(row) - (row.failed_s or 0.0)


def _told(run: Run, row: JobRow, took_s: float | None, why: str) -> Figures:
    return {
        "seed": run.seed,
        "pair": run.pair,
        "job": row.number,
        "took_s": took_s,
        "load_most": run.load_most,
        "why": why,
    }


def late(row: JobRow) -> bool:
    """Whether a backfill cycle found that a job can start now, and could not start it."""
    return row.failed_s is not None


def _earmarks(b: Sequence[Run]) -> Figures:
    """Earmarks by how they ended; node-seconds within the time in which the stream's jobs start."""
    all_ = [(run, earmark) for run in b for earmark in run.earmarks]
    over = [earmark for _, earmark in all_ if earmark.until_s is not None and earmark.end != earmarks.MOVED]
    led = sum(earmark.end == earmarks.STARTED for earmark in over)
    kept, wasted = (
        sum(_node_s(run, earmark) for run, earmark in all_ if counts(earmark))
        for counts in (lambda earmark: True, _wasted)
    )
    there = sum(run.nodes * occupancy.standing_s(run) for run in b)
    return {
        "made": sum(earmark.end != earmarks.MOVED for _, earmark in all_),
        "led_to_start": led,
        "wasted": len(over) - led,
        "by_end": dict(Counter(earmark.end for earmark in over)),
        "useful_share": led / len(over) if over else None,
        "kept_node_s": kept,
        "wasted_node_s": wasted,
        "kept_share": kept / there if there else None,
        "wasted_share": wasted / kept if kept else None,
    }


def _wasted(earmark: EarmarkRow) -> bool:
    return earmark.until_s is not None and earmark.end not in (earmarks.STARTED, earmarks.MOVED)


def _node_s(run: Run, earmark: EarmarkRow) -> float:
    """The node-seconds that an earmark kept from pilots; where the daemon did not tell, all of its nodes' time."""
    if earmark.idle_node_s is not None:
        return earmark.idle_node_s
    until_s = run.length_s if earmark.until_s is None else earmark.until_s
    return len(earmark.nodes) * occupancy.overlap_s((earmark.since_s, until_s), [(0.0, occupancy.standing_s(run))])
