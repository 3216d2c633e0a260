"""Which waiting jobs Slurm's backfill scheduler queues, and in which order. Pure.

Facts of Slurm 22.05 to 25.05, read in its source (src/slurmctld/job_scheduler.c): a job is queued once for each of its
partitions, unless it is held or depends on others. First come jobs in a reservation, then by the partition's
PriorityTier, the job's priority, the time of submission, the job id, and of an array the task's index; what waits of an
array as a whole comes behind those of its tasks that wait alone. Not copied: bf_hetjob_prio, magnetic reservations, and
that a partition that may preempt another comes before it even where that one's job is in a reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from bftd.pool.backfill.tasks import place, whole_of_heterogeneous
from slurm_plugin.types import Job, Partition
from slurm_plugin.waiting import Standing, standing

_PLAIN_TIER = 1  # Slurm's default, for a partition of which nothing is known
# The smallest comes first; what is alike stays as it is listed, and most of a queue is listed in order already.
_Key = tuple[bool, int, int, float, int, int]
_KEY = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Lines:
    """The queue's lines, in order: a job and one of its partitions, or all components of a job and "".

    `unreadable` jobs wait beside it: what they need is not known.
    """

    lines: list[tuple[tuple[Job, ...], str]]
    unreadable: int


def in_order(pending: Iterable[Job], partitions: Mapping[str, Partition]) -> Lines:
    """The lines of the waiting jobs.

    All jobs come through here at every poll, however few are looked at: only the cheapest tests are made.
    """
    tiers = {name: _PLAIN_TIER if (tier := one.priority_tier) is None else tier for name, one in partitions.items()}
    lines: list[tuple[_Key, tuple[Job, ...], str]] = []
    heterogeneous: dict[str, list[Job]] = {}
    unreadable = 0
    for job in pending:
        if job.unreadable:
            unreadable += 1
        if "+" in job.id:
            heterogeneous.setdefault(whole_of_heterogeneous(job.id), []).append(job)
        elif not job.unreadable and _is_queued(job):
            for name in job.partition:
                lines.append((_key(job, tiers.get(name, _PLAIN_TIER)), (job,), name))
    for components in heterogeneous.values():
        if not any(job.unreadable or not job.partition or not _is_queued(job) for job in components):
            # it can start once its last component can, but Slurm plans the first ones in their place
            first = min(_key(job, tiers.get(name, _PLAIN_TIER)) for job in components for name in job.partition)
            lines.append((first, tuple(components), ""))
    lines.sort(key=_KEY)
    return Lines([(jobs, name) for _, jobs, name in lines], unreadable)


def _key(job: Job, tier: int) -> _Key:
    number, task = place(job.id)
    return not job.reservation, -tier, -job.priority, job.submit_s, number, task


def _is_queued(job: Job) -> bool:
    """Whether Slurm queues a job; one with a priority of 0 is held."""
    return job.priority > 0 and standing(job.reason) is not Standing.HELD
