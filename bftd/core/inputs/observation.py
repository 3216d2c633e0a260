"""The changes that a snapshot brings: leases whose nodes or pilots are gone, overdue ones, and lost drivers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf
from operator import attrgetter

from bftd.core.inputs import (
    accounting,
    delay_budget,
    driver_reports,
    earmarks,
    node_failures,
    orphan_jobs,
    refused_grants,
)
from bftd.core.model import timing
from bftd.core.model.decisions import GaveBack, NodeOverdue
from bftd.core.model.domain import Lease, PoolView
from bftd.core.model.draft import Draft, growth_allowed, is_silent
from bftd.core.planning import admin_limits, caps
from bftd.protocol.reports import NO_SUMMARY
from slurm_plugin.nodeset import fold

GONE = "its pilot is gone from Slurm"

# Besides its changes, the whole pool is recorded this often, in seconds: a few kilobytes a day.
RECORD_WHOLE_S = 3600.0


def observe(turn: Draft, view: PoolView) -> None:
    """Fold one view of the pool into the draft. A view that is not newer than the last is ignored (S9)."""
    if view.time_s <= turn.pool.time_s:
        return
    view = delay_budget.kept(turn, orphan_jobs.guarded(turn, view))
    passed_s = accounting.counted_s(view.time_s - turn.pool.time_s, turn.settings)
    accounting.account(turn, passed_s)
    earmarks.account(turn, passed_s)
    changed = view.version != turn.pool.version or not turn.pool.seen
    # at the last snapshot, and until now without this one: if growth has become possible since, a plan is worth making
    known_s = (turn.pool.time_s, turn.now)
    could_grow = all(growth_allowed(turn.pool, at_s, turn.settings) for at_s in known_s)
    before, since_s = turn.pool, turn.pool.time_s
    if turn.watched_s == inf:
        turn.elders = frozenset(map(orphan_jobs.whole, view.job_ids))
    turn.watched_s = min(turn.watched_s, view.time_s)
    turn.pool = view
    admin_limits.apply(turn, before.barred)
    changed |= turn.pool.barred != before.barred
    turn.plan_due |= not before.counted_on <= view.counted_on
    if not before.seen:  # recorded before its change: at the first look nobody can tell since when anything has changed
        record_whole(turn, before)
    if changed:
        record_change(turn, before)
    if before.seen and before.time_s // RECORD_WHOLE_S != view.time_s // RECORD_WHOLE_S:
        record_whole(turn, before)
    earmarks.follow(turn, before)
    _expire(turn, since_s)
    pilots = view.pilots
    for lease in list(turn.leases.values()):
        # this loop runs over thousands of leases, and nearly all are as they were
        if not (lease.observed and not lease.missed_polls and pilots.get(lease.job_id or "") == lease.node):
            _follow_pilot(turn, lease)
    take_back_lost_nodes(turn)
    latest_s = turn.now + timing.EXPIRY_AHEAD_S
    for lease in list(turn.leases.values()):
        if lease.revoked_s is not None or not lease.placed_s or lease.placed_s + lease.limit_s <= latest_s:
            _follow_deadlines(turn, lease)
    _follow_drivers(turn)
    orphan_jobs.follow(turn)
    if view.accounts:
        caps.read_accounts(turn)
    admin_limits.release(turn)
    if changed or (turn.may_grow and (not could_grow or _unfilled(turn))):
        turn.plan_due = True


def _unfilled(turn: Draft) -> bool:
    """Whether a planned node is still free because the limit on submissions delayed its lease."""
    leased = set(map(attrgetter("node"), turn.leases.values()))
    return any(node not in leased for nodes in turn.planned.assignment.values() for node in nodes)


def record_change(turn: Draft, last: PoolView) -> None:
    """Record the nodes that joined and left the pool since it was `last`."""
    if not turn.explain:
        return
    before = {node.name for node in last.nodes.values() if node.in_pool}
    after = {node.name for node in turn.pool.nodes.values() if node.in_pool}
    data = {"version": turn.pool.version, "joined": sorted(after - before), "left": sorted(before - after)}
    # nodes that only the bound keeps out are told apart, for questions of what another bound would have brought
    now, then = turn.pool.beyond, last.beyond
    if now != then:
        data |= {"beyond_joined": sorted(now - then), "beyond_left": sorted(then - now)}
    turn.happened("pool", data=data)


def record_whole(turn: Draft, last: PoolView) -> None:
    """Record the whole pool, so that readers of its changes need not read them from the beginning.

    `first` marks the first look since the daemon started: what was before it is unknown.
    """
    if not turn.explain:
        return
    pool = [node.name for node in turn.pool.nodes.values() if node.in_pool]
    data = {"nodes": fold(pool), "beyond": fold(sorted(turn.pool.beyond)), "first": not last.seen}
    turn.happened("pool_whole", data=data)


def _expire(turn: Draft, since_s: float) -> None:
    """Forget what has expired since the last snapshot. If something may be tried again, a new plan is due."""
    if any(since_s < backoff.until_s <= turn.now for backoff in turn.backoff.values()):
        turn.plan_due = True
    for node, backoff in list(turn.backoff.items()):
        if turn.now - backoff.until_s > timing.BACKOFF_FORGET_S:
            del turn.backoff[node]
    for node, until_s in list(turn.quarantined.items()):
        if until_s <= turn.now:
            del turn.quarantined[node]
    node_failures.forget(turn)
    for trainer in list(turn.trainers.values()):
        if trainer.finished_s is None:
            may_grow = since_s < trainer.no_growth_until_s <= turn.now
            silent_now = is_silent(trainer, turn.now, turn.settings)  # another trainer may get its place under pj_max
            fell_silent = silent_now and not is_silent(trainer, since_s, turn.settings)
            turn.plan_due |= trainer.active and (may_grow or fell_silent)
        elif turn.now - trainer.finished_s > timing.FORGET_FINISHED_S and not turn.leases_of(trainer.id):
            del turn.trainers[trainer.id]


def _follow_pilot(turn: Draft, lease: Lease) -> None:
    """Note whether the pilot of this lease is running. A pilot that is missing twice in a row is gone."""
    node = turn.pool.nodes.get(lease.node)
    running = node is not None and node.pilot is not None
    if lease.job_id is not None:
        running = turn.pool.pilots.get(lease.job_id) == lease.node
    missed, missed_s = 0, None
    if not running and lease.placed_s is not None and turn.pool.time_s > lease.placed_s:
        missed = lease.missed_polls + 1
        missed_s = lease.missed_s if lease.missed_s is not None else turn.pool.time_s
    if missed >= timing.MISSED_POLLS:
        if refused_grants.unproven(turn, lease):
            refused_grants.count(turn, lease)
        turn.end(lease, GONE, at_s=missed_s)
    elif (running, missed) != (lease.observed, lease.missed_polls):
        first = running and not lease.shown and _is_own(turn, lease)
        shown = lease.shown or first
        turn.change_lease(lease, observed=running, missed_polls=missed, missed_s=missed_s, shown=shown)
        if first:
            refused_grants.proven(turn, lease)


def _is_own(turn: Draft, lease: Lease) -> bool:
    """Whether the pilot of a lease belongs to its trainer's user; True if Slurm does not show the job."""
    job = turn.pool.elastic.get(lease.job_id or "")
    return job is None or job.user == turn.trainers[lease.trainer].user


def take_back_lost_nodes(turn: Draft) -> None:
    """Revoke the leases of nodes that are no longer in the pool: at once if a regular job needs the node."""
    lost: dict[str, dict[str, str]] = defaultdict(dict)
    seen = turn.pool.nodes
    unhurried = earmarks.leave(turn)
    for lease in list(turn.leases.values()):
        node = seen.get(lease.node)
        if (node is not None and node.in_pool) or lease.node in unhurried:
            continue
        if lease.node in turn.pool.barred:  # for one reason, however many nodes
            why = turn.halt or turn.pool.bound
        else:
            why = f"{lease.node} {node.why}" if node is not None else f"{lease.node} is no longer in the partition"
        if lease.live:
            lost[lease.trainer][lease.node] = why
        turn.revoke(lease, why, vacate=node is not None and node.wanted)
    for trainer_id, nodes in lost.items():
        if turn.explain:
            left = sum(lease.live for lease in turn.leases_of(trainer_id))
            why = "; ".join(sorted(set(nodes.values())))
            turn.say(trainer_id, GaveBack(turn.trainers[trainer_id].name, tuple(nodes), left, why))


def _follow_deadlines(turn: Draft, lease: Lease) -> None:
    """Revoke a lease that is overdue, end one that nobody else will end, and cancel a pilot that overstays."""
    if lease.live:
        if lease.placed_s is None and turn.now - lease.granted_s > timing.PLACE_WITHIN_S:
            refused_grants.count(turn, lease)
            turn.revoke(lease, f"no pilot was placed within {timing.PLACE_WITHIN_S:.0f} s", vacate=False)
        elif lease.placed_s is not None and _expires_in(turn, lease) < timing.EXPIRY_AHEAD_S:
            turn.revoke(lease, "its pilot reaches its time limit", vacate=False)
        return
    revoked_s = lease.revoked_s if lease.revoked_s is not None else turn.now
    # a job id alone proves no pilot: unless Slurm has shown one, or the driver reported it placed, there is none to
    # wait for
    if not lease.observed and (lease.job_id is None or lease.placed_s is None):
        if turn.now - revoked_s > timing.UNPLACED_GRACE_S:
            turn.end(lease, "it was never placed")
        return
    overstays_s = turn.now - (lease.asked_back_s if lease.asked_back_s is not None else revoked_s)
    if overstays_s > _grace_s(turn, lease):
        turn.cancel_pilot(lease, f"it is still there {overstays_s:.1f} s after its node was asked back")
    if lease.asked_back_s is not None and not lease.alarmed and overstays_s > turn.settings.pool.give_back_bound_s:
        if turn.explain:
            turn.happened("alarm", lease.trainer, lease.node, {"lease": lease.id, "overdue_s": overstays_s})
            turn.say(None, NodeOverdue(lease.node, overstays_s, lease.trainer))
        turn.leases[lease.id] = replace(turn.leases[lease.id], alarmed=True)


def _expires_in(turn: Draft, lease: Lease) -> float:
    return lease.end_s - turn.now


def _grace_s(turn: Draft, lease: Lease) -> float:
    if lease.vacate:
        return timing.VACATE_GRACE_S
    trainer = turn.trainers.get(lease.trainer)
    if trainer is None or not trainer.active:
        return timing.FINISHED_GRACE_S
    if lease.leave_by_s is None or lease.revoked_s is None:
        return timing.GRACEFUL_GRACE_S
    return max(timing.GRACEFUL_GRACE_S, lease.leave_by_s - lease.revoked_s)  # nobody needs the node before


def _follow_drivers(turn: Draft) -> None:
    """Finish trainers whose driver is silent and whose job is gone. Drop unknown leases whose pilot is gone."""
    for trainer in list(turn.trainers.values()):
        if not trainer.active:
            continue
        if turn.now - trainer.heard_s > timing.DRIVER_SILENT_S and trainer.id not in turn.pool.job_ids:
            driver_reports.finish(turn, trainer.id, None, "its driver is gone", NO_SUMMARY)
            continue
        if not trainer.unknown_leases:
            continue
        rest = tuple(
            lease
            for lease in trainer.unknown_leases
            if turn.now - lease.granted_s <= timing.UNPLACED_GRACE_S or (lease.job_id or "") in turn.pool.pilots
        )
        if rest != trainer.unknown_leases:
            turn.change(trainer, unknown_leases=rest, version=trainer.version + 1)
