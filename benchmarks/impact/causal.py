"""Effects of harvesting on single jobs, by cause: preemptions, lost slots, starts a cycle late, and rooms.

Waits of two runs differ for many reasons; these figures have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.impact import occupancy, rooms, slots, stats
from benchmarks.impact.record import SCHEDULERS, JobRow, RoomRow, Run

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
        "rooms": _rooms(b),
        "cycle_s": spread([cycle_s for run in b for cycle_s in run.cycles_s]),
    }


def spread(values: Sequence[float]) -> Figures:
    """Mean with its interval, the 95th percentile, the most and how many."""
    return {
        "mean": stats.mean(values),
        "mean_interval": stats.mean_interval(values),
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
        "preempted_by": dict(Counter(row.preempted_by for row, _ in took if row.preempted_by)),
        "backfill_preempted": by_backfill,
        "backfill_preempted_share": by_backfill / harvested if harvested else None,
    }


def _slots(jobs: Sequence[tuple[Run, JobRow]], harvested: int, ran: bool) -> Figures:
    lost = [(run, row) for run, row in jobs if slots.lost(run, row)]
    return {
        "slots_lost": len(lost) if ran else None,
        "slots_lost_share": len(lost) / harvested if harvested else None,
        "slots_lost_by": dict(Counter(slots.taker(run, row) for run, row in lost)),
        "slots_lost_why": [
            {
                "seed": run.seed,
                "pair": run.pair,
                "job": row.number,
                "took_s": slots.preempt_to_start_s(run, row),
                "load_most": run.load_most,
                "why": row.lost,
            }
            for run, row in lost
        ],
    }


def _late(a: Sequence[Run], b: Sequence[Run]) -> Figures:
    """Jobs that a backfill cycle would have started and could not: they start a cycle later, or by the main scheduler.

    Without bftd it is so as well where a job before them has not quite left.
    """
    found = {kind: [(run, row) for run in some for row in run.jobs if late(row)] for kind, some in (("a", a), ("b", b))}
    return {
        "late_starts": {kind: len(rows) for kind, rows in found.items()},
        "late_starts_per_run": {
            kind: len(found[kind]) / len(some) if some else None for kind, some in (("a", a), ("b", b))
        },
        "late_by_s": {
            kind: spread([run.waited_until_s(row) - (row.failed_s or 0.0) for run, row in rows])
            for kind, rows in found.items()
        },
    }


def late(row: JobRow) -> bool:
    """Whether a backfill cycle found that a job can start now, and could not start it."""
    return row.failed_s is not None


def _rooms(b: Sequence[Run]) -> Figures:
    """Rooms by how they ended; node-seconds within the time in which the stream's jobs start."""
    all_ = [(run, room) for run in b for room in run.rooms]
    over = [room for _, room in all_ if room.until_s is not None and room.end != rooms.MOVED]
    led = sum(room.end == rooms.STARTED for room in over)
    kept, vain = (
        sum(_node_s(run, room) for run, room in all_ if counts(room)) for counts in (lambda room: True, _in_vain)
    )
    there = sum(run.nodes * occupancy.standing_s(run) for run in b)
    return {
        "made": sum(room.end != rooms.MOVED for _, room in all_),
        "led_to_start": led,
        "in_vain": len(over) - led,
        "by_end": dict(Counter(room.end for room in over)),
        "useful_share": led / len(over) if over else None,
        "kept_node_s": kept,
        "in_vain_node_s": vain,
        "kept_share": kept / there if there else None,
        "in_vain_share": vain / kept if kept else None,
    }


def _in_vain(room: RoomRow) -> bool:
    return room.until_s is not None and room.end not in (rooms.STARTED, rooms.MOVED)


def _node_s(run: Run, room: RoomRow) -> float:
    """The node-seconds that a room kept from pilots; where the daemon did not tell, all of its nodes' time."""
    if room.idle_node_s is not None:
        return room.idle_node_s
    until_s = run.length_s if room.until_s is None else room.until_s
    return len(room.nodes) * occupancy.overlap_s((room.since_s, until_s), [(0.0, occupancy.standing_s(run))])
