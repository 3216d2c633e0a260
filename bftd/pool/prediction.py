"""Earmarks at one snapshot: the waiting jobs put through the copy of Slurm's planner, and nodes kept for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from bftd.core.model.domain import EarmarkOver
from bftd.pool.availability import Availability, completing, slow, survey
from bftd.pool.backfill.model import PlannerOutcome, QueueEntry, union
from bftd.pool.backfill.planner import simulate
from bftd.pool.backfill.queue import queue
from bftd.pool.earmarks import EarmarkMemory, ExpectedStart, Prediction, awake, backed_off, earmark_wait_s, follow, key
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import Occupancy
from bftd.pool.user_backoff import excluded, tried
from slurm_plugin.read.types import Job, Snapshot


class BackfillModel(Protocol):
    """A copy of Slurm's planner: it tells which waiting jobs could start now on some ground."""

    def __call__(
        self,
        snapshot: Snapshot,
        jobs: Occupancy,
        ground: Availability,
        *,
        kept: Mapping[str, Collection[str]],
        backed_off: Collection[str],
    ) -> tuple[Sequence[QueueEntry], PlannerOutcome]:
        """Return the queue in the planner's order, and its outcome; `kept` and `backed_off` are by `earmarks.key`."""


def slurms_next_cycle(
    snapshot: Snapshot,
    jobs: Occupancy,
    ground: Availability,
    *,
    kept: Mapping[str, Collection[str]],
    backed_off: Collection[str],
) -> tuple[Sequence[QueueEntry], PlannerOutcome]:
    """Simulate Slurm's next backfill cycle, without any pilot."""
    waits = queue(snapshot, jobs.pending, ground.nodes, ground.numbering, ground.lent)
    ids = {key(entry.id): entry.id for entry in waits.entries} if kept or backed_off else {}
    outcome = simulate(
        waits.entries,
        ground.numbering,
        ground.ready,
        ground.leased,
        ground.ends,
        ground.bookings,
        snapshot.time_s,
        snapshot.scheduler,
        kept={ids.get(key_, key_): ground.numbering.mask(names) for key_, names in kept.items()},
        weights=ground.weights,
        backed_off={ids.get(key_, key_) for key_ in backed_off},
    )
    return waits.entries, replace(outcome, cut="; ".join(filter(None, (waits.cut, outcome.cut))))


def earmark_nodes(
    memory: EarmarkMemory,
    snapshot: Snapshot,
    jobs: Occupancy,
    harvest: Harvest,
    leased: Mapping[str, str | None],
    copy: BackfillModel = slurms_next_cycle,
) -> tuple[EarmarkMemory, tuple[EarmarkOver, ...]]:
    """Say which nodes are kept for which jobs, and which earmarks of the snapshot before are over.

    If the copy fails, nothing else does: the error is the memory's `fault`, and no node is earmarked at this snapshot.
    """
    now_s, scheduler = snapshot.time_s, snapshot.scheduler
    fault: Exception | None = None
    foreseen: Prediction | None = None
    memory = before = replace(memory, completing=completing(memory.completing, snapshot))
    try:
        if jobs.near:
            kept = {name for one in memory.kept.values() for name in one.nodes}
            late = slow(memory.completing, snapshot, harvest, kept)
            ground = survey(snapshot, jobs, harvest, leased, kept, memory.numbering, late)
            memory = awake(memory, ground.numbering, ground.ready, now_s)
            foreseen = _foresee(memory, snapshot, jobs, ground, copy)
        else:  # nobody waits for a harvested node
            foreseen = Prediction(memory.numbering, size=len(jobs.nodes))
        after, over = follow(memory, foreseen, snapshot.jobs, scheduler, now_s)
    except Exception as error:
        fault = error
        after, over = follow(memory, None, snapshot.jobs, scheduler, now_s)
    return with_users(before, replace(after, fault=fault), over, now_s, earmark_wait_s(scheduler))


def with_users(
    before: EarmarkMemory, after: EarmarkMemory, over: tuple[EarmarkOver, ...], now_s: float, wait_s: float
) -> tuple[EarmarkMemory, tuple[EarmarkOver, ...]]:
    """Update the backoffs of users by what their earmarks led to since the snapshot that `before` is of.

    Earmarks of users who are excluded end as backed off.
    """
    earmarked = {before.kept[key_].user for key_ in before.earmarks}
    started = [before.kept[one.earmark.job].user for one in over if one.end == "started"]
    gone = {
        before.kept[one.earmark.job].user: wait_s - (now_s - one.earmark.since_s) for one in over if one.end == "gone"
    }
    passed_s = 0.0 if before.looked_s is None else now_s - before.looked_s
    users = tried(before.users, earmarked, started, gone, passed_s, wait_s)
    out = excluded(before.users)
    told = (
        replace(one, end="backed off")
        if one.end == "no longer fits" and before.kept[one.earmark.job].user in out
        else one
        for one in over
    )
    return replace(after, users=users, looked_s=now_s), tuple(told)


def _foresee(
    memory: EarmarkMemory,
    snapshot: Snapshot,
    jobs: Occupancy,
    ground: Availability,
    copy: BackfillModel,
) -> Prediction:
    kept = {key_: one.nodes for key_, one in memory.kept.items()}
    out = unlikely(memory, jobs.near, snapshot.time_s)
    entries, outcome = copy(snapshot, jobs, ground, kept=kept, backed_off=out)
    return Prediction(
        numbering=ground.numbering,
        ready=ground.ready,
        clearing=ground.clearing,
        ours=ground.leased,
        harvested=ground.numbering.mask(jobs.nodes),
        size=len(jobs.nodes),
        starts=expected_starts(entries, outcome, ground.ready),
        cut=outcome.cut,
    )


def unlikely(memory: EarmarkMemory, near: Iterable[Job], now_s: float) -> frozenset[str]:
    """Return the jobs, by `earmarks.key`, for which no node is earmarked because of what earlier earmarks led to."""
    found = backed_off(memory, now_s)
    if out := excluded(memory.users):
        found |= {key(job.id) for job in near if job.user in out}
    if memory.governor.wary:
        proved = memory.governor.proved
        found |= {key(job.id) for job in near if job.user not in proved} - memory.kept.keys()
    return found


def expected_starts(entries: Sequence[QueueEntry], outcome: PlannerOutcome, ready: int) -> Mapping[str, ExpectedStart]:
    """Return the jobs that could start now, each with its place in line for the `ready` nodes that are open to it."""
    starts: dict[str, ExpectedStart] = {}
    if not outcome.now:
        return starts
    # where an earlier job waits for nodes, the main scheduler starts no later one: it strikes out the partition's nodes
    passed = ready
    for entry in entries:
        if entry.barred:
            continue
        nodes = outcome.now.get(entry.id)
        if nodes is None:
            passed &= ~union(part.within if part.within >= 0 else part.allowed for part in entry.parts)
            continue
        allowed = union(part.allowed for part in entry.parts)
        before = starts.get(key(entry.id), ExpectedStart(0, 0, first=False))
        first = (allowed & passed).bit_count() >= sum(part.need for part in entry.parts)
        starts[key(entry.id)] = ExpectedStart(before.nodes | nodes, before.allowed | allowed, before.first or first)
    return starts
