"""Slots: the nodes that Slurm frees for a job by a preemption, and how a job lost the one that was made for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.backfill.cycle_log import Cycle
from benchmarks.impact.record import JobRow, Run
from slurm_plugin.nodeset import fold

LOST_S = 2.0
"""Slurm gives a preempted node on within one scheduling tick; a job that waits longer has lost its slot."""


def preempt_to_start_s(run: Run, row: JobRow) -> float | None:
    """From the first preemption for a job to its first line; None where Slurm preempted nothing for it."""
    return None if row.preempt_s is None else run.waited_until_s(row) - row.preempt_s


def lost(run: Run, row: JobRow) -> bool:
    """Whether a job was preempted for and did not get its slot."""
    took_s = preempt_to_start_s(run, row)
    return took_s is not None and took_s > LOST_S


def on_harvested(run: Run, row: JobRow) -> bool:
    """Whether a job started on a node that a pilot had while it waited, and nobody else after that.

    A job for which Slurm had to preempt is one in any case.
    """
    if row.preempt_s is not None:
        return True
    if row.began_s is None:
        return False
    since_s = math.floor(row.submit_s)
    return any(
        pilot.node in row.nodes
        and pilot.began_s < row.began_s
        and pilot.ended_s >= since_s
        and not _taken(run, row, pilot.node, pilot.ended_s)
        for pilot in run.pilots
    )


def _taken(run: Run, row: JobRow, node: str, since_s: float) -> bool:
    """Whether another regular job began on `node` after `since_s` and before `row` did."""
    return any(
        node in other.nodes and other.began_s is not None and since_s <= other.began_s < (row.began_s or 0.0)
        for other in run.jobs
        if other is not row
    )


def taker(run: Run, row: JobRow) -> str:
    """Who got a node that Slurm had freed for a job before that job did: a pilot, a regular job, or nobody."""
    return _taking(run, row)[0]


def _taking(run: Run, row: JobRow) -> tuple[str, str]:
    """The kind of who took the first of a job's freed nodes, and a sentence about it."""
    assert row.preempt_s is not None
    first_s, last_s = math.floor(row.preempt_s), run.length_s if row.start_s is None else math.floor(row.start_s)
    pilots = [pilot for pilot in run.pilots if pilot.node in row.freed and first_s < pilot.began_s < last_s]
    if pilots:
        first = min(pilots, key=lambda pilot: pilot.began_s)
        return "pilot", f"a pilot got {first.node} at {first.began_s:.0f} s"
    for other in sorted(run.jobs, key=lambda job: job.began_s or 0.0):
        nodes = set(row.freed) & set(other.nodes)
        if other is not row and nodes and other.began_s is not None and first_s <= other.began_s <= last_s:
            by = f" by {other.started_by}" if other.started_by else ""
            return "regular", f"job {other.number} got {fold(nodes)} at {other.began_s:.0f} s{by}"
    return "nobody", "nobody got them"


def why_lost(run: Run, row: JobRow, id_: str, cycles: Sequence[Cycle], begin_s: float) -> str:
    """One line from the log around a lost slot: what was freed, who got it, what backfill made of it, what was kept.

    `id_` is the job's in Slurm, `cycles` are in unix seconds, and the stream began at `begin_s`.
    """
    assert row.preempt_s is not None
    parts = [
        f"{fold(row.freed) or 'nothing that is known'} freed by {row.preempted_by or 'Slurm'} at {row.preempt_s:.1f} s",
        _taking(run, row)[1],
        _planned_next(row, id_, cycles, begin_s),
        _earmark(run, row),
        _start(row),
    ]
    return "; ".join(parts)


def why_late(row: JobRow) -> str:
    """One line about a job that a backfill cycle could not start: when that was, and what started it then."""
    return f"a backfill cycle could not start it at {row.failed_s:.1f} s; {_start(row)}"


def _start(row: JobRow) -> str:
    if row.start_s is None:
        return "never started"
    return f"started by {row.started_by or 'Slurm'} at {row.start_s:.1f} s on {fold(row.nodes)}"


def _planned_next(row: JobRow, id_: str, cycles: Sequence[Cycle], begin_s: float) -> str:
    """What the first backfill cycle after the preemption said of the job."""
    assert row.preempt_s is not None
    after = [cycle for cycle in cycles if cycle.begin_s - begin_s > row.preempt_s]
    if row.start_s is not None:
        after = [cycle for cycle in after if cycle.begin_s - begin_s < row.start_s]
    if not after:
        return "no backfill cycle came between"
    first = after[0]
    when = f"of {len(after)} backfill cycles between, that of {first.begin_s - begin_s:.1f} s"
    if id_ in first.started:
        return f"{when} started it"
    if id_ in first.failed:
        return f"{when} could not start it again"
    if id_ in first.planned:
        plan = first.planned[id_]
        return f"{when} planned it for {plan.start_s - begin_s:.0f} s on {fold(plan.nodes)}"
    return f"{when} {'found no start for it' if id_ in first.tested else 'did not come to it'}"


def _earmark(run: Run, row: JobRow) -> str:
    """Since when, before the preemption, bftd kept nodes for the job."""
    assert row.preempt_s is not None
    mine = [earmark for earmark in run.earmarks if earmark.job == row.number and earmark.since_s <= row.preempt_s]
    if not mine:
        return "no node was earmarked"
    last = mine[-1]
    over = last.until_s is not None and last.until_s < row.preempt_s
    until = f"to {last.until_s:.1f} s ({last.end})" if over else "and still"
    return f"earmarked {fold(last.nodes)} from {last.since_s:.1f} s {until}"
