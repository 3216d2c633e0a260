"""The waiting jobs that Slurm's backfill scheduler queues, and their order. Pure.

Facts of Slurm 22.05 to 26.05, read in its source (src/slurmctld/job_scheduler.c): a job is queued once for each of its
partitions, unless it is held or depends on others. First come expedited jobs, then those in a reservation, then by the
partition's PriorityTier, the job's priority, the time of submission, the job id, and for an array the task's index; the
tasks that wait as one come behind those that wait alone. Not copied: bf_hetjob_prio, magnetic reservations, and that a
partition that may preempt another comes before it even if the other's job is in a reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from bftd.pool.backfill.job_ids import place, whole_of_heterogeneous
from slurm_plugin.pilots.pending_reasons import Standing, standing
from slurm_plugin.read.types import Job, Partition

_PLAIN_TIER = 1  # Slurm's default, for an unknown partition
# A tier is below 2^16 and a priority below 2^32: both are exact in one number, and numbers are sorted fastest.
_TIER = 2.0**33
_RESERVATION = 2.0**51
_FIRST = -(2.0**52)


@dataclass(frozen=True, slots=True)
class QueueLines:
    """The queue's lines: `jobs` with one of their `partitions` each, or the components of a job with "".

    `ranks` orders them, except among lines of equal tier and priority; the smallest comes first. `unreadable` counts
    further waiting jobs whose needs are not known.
    """

    jobs: Sequence[tuple[Job, ...] | Job]
    partitions: Sequence[str]
    ranks: Sequence[float]
    unreadable: int

    def __len__(self) -> int:
        return len(self.ranks)

    def in_order(self) -> Iterator[tuple[tuple[Job, ...], str]]:
        """Yield the lines in order. Lines of one rank are sorted only when their turn comes.

        The end of a long queue is never sorted.
        """
        for _, equal in groupby(sorted(range(len(self.ranks)), key=self.ranks.__getitem__), self.ranks.__getitem__):
            for line in sorted(equal, key=self._age):
                job = self.jobs[line]
                yield (job,) if isinstance(job, Job) else job, self.partitions[line]

    def _age(self, line: int) -> tuple[float, int, int]:
        job = self.jobs[line]
        first = job if isinstance(job, Job) else job[0]
        return first.submit_s, *place(first.id)


def lines(pending: Iterable[Job], partitions: Mapping[str, Partition]) -> QueueLines:
    """Return the lines of the waiting jobs.

    All jobs come through here at every poll, however few are looked at: only the cheapest tests are made.
    """
    tiers = {name: _PLAIN_TIER if (tier := one.priority_tier) is None else tier for name, one in partitions.items()}
    jobs: list[tuple[Job, ...] | Job] = []
    names: list[str] = []
    ranks: list[float] = []
    heterogeneous: dict[str, list[Job]] = {}
    unreadable = 0
    for job in pending:
        if job.unreadable:
            unreadable += 1
        if "+" in job.id:
            heterogeneous.setdefault(whole_of_heterogeneous(job.id), []).append(job)
        elif not job.unreadable and _is_queued(job):
            for name in job.partition:
                jobs.append(job)
                names.append(name)
                ranks.append(_rank(job, tiers.get(name, _PLAIN_TIER)))
    for components in heterogeneous.values():
        if not any(job.unreadable or not job.partition or not _is_queued(job) for job in components):
            jobs.append(tuple(sorted(components, key=lambda job: place(job.id))))
            names.append("")
            # it can start once its last component can, but Slurm plans the first ones in their place
            ranks.append(min(_rank(job, tiers.get(name, _PLAIN_TIER)) for job in components for name in job.partition))
    return QueueLines(jobs, names, ranks, unreadable)


def line_rank(tier: int, priority: float, reserved: bool) -> float:
    """Return the rank of a line of the queue: a reservation comes first, then the tier, then the priority."""
    rank = -(tier * _TIER + priority)
    return rank - _RESERVATION if reserved else rank


def _rank(job: Job, tier: int) -> float:
    if job.expedited:
        return _FIRST
    return line_rank(tier, job.priority, bool(job.reservation))


def _is_queued(job: Job) -> bool:
    """Whether Slurm queues a job; one with a priority of 0 is held."""
    return job.priority > 0 and standing(job.reason) is not Standing.HELD
