"""Jobs of the harvested partition without a lease: they are named, and some of them cancelled.

A pilot that one of our trainers left behind is always ours to cancel (L3). Any other such job belongs to a user who
goes round the daemon, or to a driver that misbehaves. It is named for the administrators. With `[slurm] operator` it is
cancelled too, if it looks like a pilot, is younger than this daemon, and is not the administrators' own; and only a
limited number of them (`bftd.core.model.foreign_jobs`). Pilots of another daemon are never touched if that daemon is
believed to exist: see `believed`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bftd.core.model import foreign_jobs, timing
from bftd.core.model.decisions import CancellingStopped, ForeignPilots, OrphanJobFound
from bftd.core.model.domain import CancelPilot, PoolView, Settings, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.foreign_jobs import ElasticJob, OrphanJob
from bftd.core.model.messages import foreign_pilots

STOPPED = "operator"
FOREIGN = "daemon"


def believed(users: Collection[str], spared: Collection[str]) -> bool:
    """Whether the running pilots of `users`, which all name one other daemon, prove that it exists.

    A comment is written by the job's own user, so one user alone proves only that they wrote it, unless the site trusts
    them (`spared`). A daemon that serves a centre has pilots of several users.
    """
    return len(set(users)) > 1 or not set(spared).isdisjoint(users)


def foreign(turn: Draft, view: PoolView) -> dict[str, list[str]]:
    """Return the running pilots of other daemons: the ids of their jobs by the identity of each believed daemon.

    A pilot of a trainer that is known here, and of its user, is ours whatever its comment says: its driver has changed
    over from a daemon that no longer exists.
    """
    whose: dict[str, list[str]] = {}
    for id_, identity in view.daemons.items():
        if identity not in turn.settings.identities and _trainer(turn, view, id_) is None and id_ in view.elastic:
            whose.setdefault(identity, []).append(id_)
    return {
        identity: ids
        for identity, ids in whose.items()
        if believed([view.elastic[id_].user for id_ in ids], turn.settings.spared)
    }


def guarded(turn: Draft, view: PoolView) -> PoolView:
    """Return the view, which forbids growing while pilots of another daemon run in the partition."""
    if not turn.settings.identities or turn.settings.identities.issuperset(view.daemons.values()):
        return view
    if not (others := foreign(turn, view)):
        return view
    ids = tuple(id_ for their in others.values() for id_ in their)
    alarm = ForeignPilots(", ".join(others), ids, tuple(sorted({view.elastic[id_].user for id_ in ids})))
    turn.alarm(FOREIGN, alarm)
    return replace(
        view,
        hold=f"{foreign_pilots(alarm.identity, alarm.job_ids, alarm.users)}; nothing grows meanwhile",
    )


def follow(turn: Draft) -> None:
    """Find the orphan jobs of the view in the draft, name the new ones and cancel those that may be cancelled."""
    before, turn.orphan_jobs = turn.orphan_jobs, {}
    if not (jobs := _jobs(turn)):
        return
    covered = _covered(turn, jobs)
    for job in jobs:
        if job.id not in covered:
            turn.orphan_jobs[job.id] = _judged(turn, before.get(job.id, OrphanJob(job, turn.now)))
    _act_as_operator(turn)


def spared_because(job: ElasticJob, settings: Settings) -> str | None:
    """Return why operator mode leaves a job alone whatever its age; None if it does not."""
    if job.user in settings.spared:
        return f"{job.user} is an administrator"
    if len(job.nodes) != 1:
        return f"it has {len(job.nodes)} nodes, and a pilot has one"
    if job.limit_s is None or job.limit_s > timing.whole_minutes(settings.pool.pilot_limit_s):
        return "its time limit is longer than that of any pilot"
    return None


def whole(job_id: str) -> str:
    """Return the number of a job; for an array's task or a part of a heterogeneous job, that of the whole."""
    return job_id.partition("_")[0].partition("+")[0]


def _jobs(turn: Draft) -> list[ElasticJob]:
    """Return the jobs to look at: all on harvested nodes, and pilots of our trainers wherever they are."""
    elsewhere = turn.pool.elsewhere.values()
    return [*turn.pool.elastic.values(), *(job for job in elsewhere if _trainer(turn, turn.pool, job.id) is not None)]


def _covered(turn: Draft, jobs: Collection[ElasticJob]) -> set[str]:
    """Return the ids of the jobs that have a lease: one of the job's user, for just that node.

    A driver's word about its pilots counts for its own user's jobs only, so that nobody hides behind another's lease.
    """
    claimed: set[tuple[str | None, str, str]] = set()
    for lease in turn.leases.values():
        # without a job id the driver has not said yet which job it is; after PLACE_WITHIN_S the lease is revoked
        if lease.job_id is not None or lease.live:
            claimed.add((lease.job_id, lease.node, turn.trainers[lease.trainer].user))
    for trainer in turn.trainers.values():
        for held in trainer.unknown_leases:
            if held.job_id and turn.now - held.granted_s <= timing.GRACEFUL_GRACE_S:
                claimed.add((held.job_id, held.node, trainer.user))
    return {
        job.id
        for job in jobs
        if len(job.nodes) == 1 and {(id_, job.nodes[0], job.user) for id_ in (job.id, None)} & claimed
    }


def _trainer(turn: Draft, view: PoolView, job_id: str) -> Trainer | None:
    """Return the trainer that a job names as its own, if it is known here and of the job's user."""
    owner = turn.trainers.get(view.owners.get(job_id, ""))
    job = view.elastic.get(job_id) or view.elsewhere.get(job_id)
    return owner if owner is not None and job is not None and owner.user == job.user else None


def _judged(turn: Draft, orphan: OrphanJob) -> OrphanJob:
    """Name one orphan job, and cancel it if one of our own trainers left it behind."""
    ours = _trainer(turn, turn.pool, orphan.job.id)
    grace_s = timing.ORPHAN_GRACE_S if ours else timing.ORPHAN_NAMED_S
    if turn.now - orphan.seen_s > grace_s:
        orphan = _named(turn, orphan)
    if ours is None or turn.now - orphan.seen_s <= grace_s or not _to_try(turn, orphan):
        return orphan
    turn.actions.append(CancelPilot(orphan.job.id, ours.id, "it belongs to no lease"))
    return replace(orphan, cancelled_s=turn.now)


def _act_as_operator(turn: Draft) -> None:
    """Cancel due jobs of others. If they exceed the bound, cancel none and raise an alarm until a reload."""
    if not turn.settings.slurm.operator or turn.pool.refused or STOPPED in turn.alarms:
        return
    theirs = {id_ for ids in foreign(turn, turn.pool).values() for id_ in ids}
    due = [orphan for orphan in turn.orphan_jobs.values() if orphan.job.id not in theirs and _due(turn, orphan)]
    running = len(turn.pool.elastic)
    if turn.cancels.exceeded([orphan.job.id for orphan in due], running):
        together = len(turn.cancels.jobs.keys() | {orphan.job.id for orphan in due})
        turn.alarm(STOPPED, CancellingStopped(together, running, foreign_jobs.most(running)))
        return
    trying = [orphan for orphan in due if _to_try(turn, orphan)]
    for orphan in trying[: turn.cancels.left(turn.settings.slurm.operator_cancels_per_min)]:
        why = f"no lease stands behind this job of {orphan.job.user}"
        turn.actions.append(CancelPilot(orphan.job.id, None, why))
        turn.cancels = turn.cancels.with_(orphan.job.id, turn.now)
        turn.orphan_jobs[orphan.job.id] = replace(orphan, cancelled_s=turn.now)


def _to_try(turn: Draft, orphan: OrphanJob) -> bool:
    """Whether a job may be cancelled now; a cancellation that failed is tried again only after CANCEL_AGAIN_S."""
    return orphan.cancelled_s is None or turn.now - orphan.cancelled_s > timing.CANCEL_AGAIN_S


def _due(turn: Draft, orphan: OrphanJob) -> bool:
    """Whether a job that is not one of our own trainers' is to be cancelled for the site."""
    job = orphan.job
    if _trainer(turn, turn.pool, job.id) is not None:
        return False
    if spared_because(job, turn.settings):
        return False
    if job.id in turn.pool.owners:  # it looks like a pilot: its driver may be about to come back to a new daemon
        due_s = max(orphan.seen_s + timing.ORPHAN_GRACE_S, turn.watched_s + timing.DRIVER_SILENT_S)
        return turn.now > due_s
    if job.submit_s <= turn.watched_s or whole(job.id) in turn.elders:
        return False
    return turn.now > orphan.seen_s + timing.ORPHAN_UNMARKED_GRACE_S


def _named(turn: Draft, orphan: OrphanJob) -> OrphanJob:
    if orphan.named:
        return orphan
    job = orphan.job
    if turn.explain:
        word = turn.pool.daemons.get(job.id, "")
        turn.say(None, OrphanJobFound(job.user, job.nodes, job.id, "" if word in turn.settings.identities else word))
        whose = {"job_id": job.id, "user": job.user, "account": job.account}
        # Its name in the ledger until 1.1.
        turn.happened("stray", node=job.nodes[0], data=whose | {"nodes": list(job.nodes), "since_s": job.start_s})
    return replace(orphan, named=True)
