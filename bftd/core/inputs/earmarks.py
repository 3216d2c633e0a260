"""Earmarks as the core carries them out: pilots that leave nodes to a job, their deadlines, and the cost.

If Slurm's next backfill cycle is seconds away, a pilot has until shortly before it to leave at a step's end, so that
nothing of the step is lost; nobody needs the node before. Then it is vacated, as every node that Slurm wants is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from bftd.config import hours
from bftd.core.model import growth_stops, timing
from bftd.core.model.decisions import Left
from bftd.core.model.domain import Earmark, Lease, PoolNode, PoolView
from bftd.core.model.draft import Draft
from slurm_plugin.nodeset import fold


def account(turn: Draft, passed_s: float) -> None:
    """Count `passed_s` seconds for the nodes that earmarks kept idle, by the state at the last snapshot."""
    if passed_s <= 0.0 or not turn.pool.earmarks:
        return
    idle = {
        job: sum(turn.lease_on(node) is None for node in earmark.nodes) for job, earmark in turn.pool.earmarks.items()
    }
    turn.earmark_usage = turn.earmark_usage.kept({job: passed_s * count for job, count in idle.items()})


def follow(turn: Draft, last: PoolView) -> None:
    """Record the earmarks that were made since the pool was `last`, and those that are over."""
    view = turn.pool
    for over in view.earmarks_over:
        job, started = over.earmark.job, over.end == "started"
        kept_s, lasted_s = turn.earmark_usage.open.get(job, 0.0), max(0.0, view.time_s - over.earmark.since_s)
        told = {"job": job, "end": over.end, "duration_s": lasted_s, "kept_node_seconds": kept_s}
        turn.happened("earmark_over", data=told)
        turn.earmark_usage = turn.earmark_usage.ended(job, started)
    made = view.made(last.earmarks)
    for earmark in made if turn.explain else ():
        told = {
            "job": earmark.job,
            "nodes": fold(earmark.nodes),
            "leaving": fold(earmark.leaving),
            "due_s": earmark.due_s,
        }
        turn.happened("earmark", data=told)
    if made:
        turn.earmark_usage = replace(turn.earmark_usage, made=turn.earmark_usage.made + len(made))


def leave(turn: Draft) -> set[str]:
    """Revoke leases on earmarked nodes, with a deadline if the next cycle is far off; returns the nodes with one."""
    told: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    unhurried = set()
    for earmark in turn.pool.earmarks.values():
        for name in earmark.nodes:
            lease, node = turn.lease_on(name), turn.pool.nodes.get(name)
            if lease is None or lease.vacate or node is None or node.in_pool:
                continue
            by_s = _leave_by_s(turn, earmark, lease, node)
            by = hours.time_of_day(turn.settings.zone, by_s) if by_s is not None else ""
            if lease.live:
                told[lease.trainer, earmark.job, by].append(name)
            why = f"{name} {node.why}{', by ' if by else ''}{by}"
            if by_s is None:
                turn.revoke(lease, why, vacate=True)
            else:
                unhurried.add(name)
                turn.revoke(turn.change_lease(lease, leave_by_s=by_s), why, vacate=False)
    if turn.explain and told:
        live = turn.live_nodes()
        for (trainer, job, by), names in told.items():
            left = len(live.get(trainer, ()))
            turn.say(trainer, Left(turn.trainers[trainer].name, tuple(names), left, f"job {job}", by))
    return unhurried


def _leave_by_s(turn: Draft, earmark: Earmark, lease: Lease, node: PoolNode) -> float | None:
    """Return when a pilot is to be gone for Slurm's next cycle; None if it is to leave at once.

    A time that a pilot was told is never put off. If Slurm itself plans to use the node, that plan counts as always.
    Nor does the pilot stay beyond the hours of harvesting.
    """
    if earmark.due_s is None:
        return None
    times_s = [earmark.due_s - timing.LEAVE_AHEAD_S - turn.settings.slurm.poll_s]
    if lease.leave_by_s is not None:
        times_s.append(lease.leave_by_s)
    if node.window_s is not None and turn.pool.seen:
        times_s.append(turn.pool.time_s + node.window_s - turn.settings.pool.vacate_ahead_s)
    hour = growth_stops.opening(turn.settings, turn.now)
    times_s.append(hour.until_s if hour.open else turn.now)
    least_s = timing.LEAVE_LEAST_S if lease.leave_by_s is None else 0.0
    by_s = min(times_s)
    return by_s if by_s - turn.now > least_s else None
