"""Jobs of the harvested partition that no lease stands behind: they are named, and some of them cancelled.

A pilot that one of our trainers left behind is always ours to cancel (L3). Any other such job belongs to a user who
goes round the daemon, or to a driver that misbehaves. It is named for the administrators. With `[slurm] operator` it
is cancelled too, unless it is the administrators' own.
"""

from __future__ import annotations

from dataclasses import replace

from bftd.core import timing
from bftd.core.decisions import JobStrays
from bftd.core.domain import CancelPilot, Stray, Trainer
from bftd.core.turn import Turn


def follow(turn: Turn) -> None:
    """Find the stray jobs of the view in the draft, name the new ones and cancel what may be cancelled."""
    before, turn.strays = turn.strays, {}
    if not turn.pool.elastic:
        return
    covered = _covered(turn)
    for job in turn.pool.elastic.values():
        if job.id not in covered:
            turn.strays[job.id] = _judged(turn, before.get(job.id, Stray(job, turn.now)))


def _covered(turn: Turn) -> set[str]:
    """The ids of the jobs that a lease stands behind: one of the job's user, for just that node.

    What a driver says of its pilots counts for its own user's jobs only, so that nobody hides behind another's lease.
    """
    claimed: set[tuple[str | None, str, str]] = set()
    for lease in turn.leases.values():
        # without a job id the driver has not said yet which it is; after PLACE_WITHIN_S the lease is revoked
        if lease.job_id is not None or lease.live:
            claimed.add((lease.job_id, lease.node, turn.trainers[lease.trainer].user))
    for trainer in turn.trainers.values():
        for held in trainer.strays:
            if held.job_id and turn.now - held.granted_s <= timing.GRACEFUL_GRACE_S:
                claimed.add((held.job_id, held.node, trainer.user))
    return {
        job.id
        for job in turn.pool.elastic.values()
        if len(job.nodes) == 1 and {(id_, job.nodes[0], job.user) for id_ in (job.id, None)} & claimed
    }


def _judged(turn: Turn, stray: Stray) -> Stray:
    """Do what is due about one stray job."""
    owner = turn.trainers.get(turn.pool.owners.get(stray.job.id, ""))
    ours = owner if owner is not None and owner.user == stray.job.user else None
    if turn.now - stray.seen_s > (timing.ORPHAN_GRACE_S if ours else timing.STRAY_NAMED_S):
        stray = _named(turn, stray)
    if not _due(turn, stray, ours):
        return stray
    why = "it belongs to no lease" if ours else f"no lease stands behind this job of {stray.job.user}"
    turn.actions.append(CancelPilot(stray.job.id, ours.id if ours else None, why))
    return replace(stray, cancelled_s=turn.now)


def _due(turn: Turn, stray: Stray, ours: Trainer | None) -> bool:
    """Whether a job is to be cancelled now. One that could not be cancelled is tried again now and then."""
    if stray.cancelled_s is not None and turn.now - stray.cancelled_s <= timing.CANCEL_AGAIN_S:
        return False
    if ours:
        return turn.now - stray.seen_s > timing.ORPHAN_GRACE_S
    if not turn.settings.slurm.operator or stray.job.user in turn.settings.spared:
        return False
    due_s = stray.seen_s + timing.STRAY_GRACE_S
    if stray.job.id in turn.pool.owners:  # it looks like a pilot: its driver may be about to come back to a new daemon
        due_s = max(stray.seen_s + timing.ORPHAN_GRACE_S, turn.watched_s + timing.DRIVER_SILENT_S)
    return turn.now > due_s


def _named(turn: Turn, stray: Stray) -> Stray:
    if stray.named:
        return stray
    job = stray.job
    if turn.explain:
        turn.say(None, JobStrays(job.user, job.nodes, job.id))
        whose = {"job_id": job.id, "user": job.user, "account": job.account}
        turn.happened("stray", node=job.nodes[0], data=whose | {"nodes": list(job.nodes), "since_s": job.start_s})
    return replace(stray, named=True)
