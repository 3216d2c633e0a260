"""The queue of Slurm's backfill scheduler, made from a snapshot for the copy of its planner. Pure.

Facts of Slurm 22.05 to 25.05, read in its source (src/plugins/sched/backfill/backfill.c), beside those in `order`:

- Jobs beyond bf_max_job_user, bf_max_job_part or bf_max_job_user_part are passed over; of an array each task that is
  tried counts there.
- bf_max_job_test counts what is tried on nodes: not a job that a limit keeps back, or for which no nodes could ever do.
  It is looked at between jobs, not between the tasks of an array.
- A job over the partition's MaxTime or MaxNodes is not tried there; MaxTime stands for a limit that the job has not.
- A partition that is DRAIN starts what is queued already; one that is DOWN or INACTIVE starts nothing.
- A job younger than bf_min_age_reserve or below bf_min_prio_reserve starts now or is not planned.

Not copied: bf_max_job_assoc, bf_max_job_start, bf_job_part_count_reserve, QOS: nothing is read of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from bftd.pool.backfill.demand import demand
from bftd.pool.backfill.layout import layout_of
from bftd.pool.backfill.order import in_order
from bftd.pool.backfill.shares import Shares
from bftd.pool.backfill.tasks import running_by_array, waiting
from bftd.pool.backfill.wanted import Numbering, Part, Wanted
from slurm_plugin.types import Job, Node, Snapshot
from slurm_plugin.waiting import Standing, standing

YEAR_S = 365 * 86400.0  # for which Slurm plans a job without a limit in a partition without one
_CLOSED = frozenset({"DOWN", "INACTIVE"})


@dataclass(frozen=True, slots=True)
class Queue:
    """What the planner is to look at, in order, of `queued` lines: jobs that wait, one for each of their partitions.

    `cut` says in words why not all were looked at, "" where all were. What `unreadable` jobs need is not known: they
    are not among them.
    """

    entries: tuple[Wanted, ...]
    queued: int
    cut: str = ""
    unreadable: int = 0


def queue(snapshot: Snapshot, pending: Iterable[Job], nodes: Mapping[str, Node], numbering: Numbering) -> Queue:
    """The queue over `pending`, the regular jobs that wait, and `nodes`, all that any of them may use."""
    order = in_order(pending, snapshot.partitions)
    desk = _Desk(snapshot, nodes, numbering)
    entries: list[Wanted] = []
    tried, cut = 0, ""
    for index, (jobs, name) in enumerate(order.lines):
        if tried >= snapshot.scheduler.depth:
            cut = f"looks at the first {index:,} of {len(order.lines):,} waiting jobs, as Slurm does (bf_max_job_test)"
            break
        wanted, tries = desk.entry(jobs, name)
        tried += tries
        if wanted is not None:
            entries.append(wanted)
    return Queue(tuple(entries), len(order.lines), cut, order.unreadable)


class _Desk:
    """Makes entries of lines, from the first on, and counts the jobs of users and partitions as Slurm does."""

    def __init__(self, snapshot: Snapshot, nodes: Mapping[str, Node], numbering: Numbering) -> None:
        self._snapshot = snapshot
        self._scheduler = snapshot.scheduler
        self._nodes = nodes
        self._numbering = numbering
        self._layout = layout_of(nodes, numbering)
        self._used: dict[tuple[str, str], int] = {}
        # worked out when they are first asked for
        self._shares: Shares | None = None
        self._running: Mapping[str, int] | None = None

    def entry(self, jobs: Sequence[Job], name: str) -> tuple[Wanted | None, int]:
        """The entry of a line, None where there is none, and how many tries it counts as."""
        if any(_is_barred(job) for job in jobs):
            return self._barred(jobs, name), 0
        where = [[one for one in ((name,) if name else job.partition) if self._takes(one, job)] for job in jobs]
        if not all(where):
            return None, 0
        tasks = self._tasks(jobs[0]) if name else 1
        if tasks <= 0:  # as many of its tasks run as may
            return self._barred(jobs, name), 0
        for job, names in zip(jobs, where, strict=True):
            tasks = min(tasks, self._within(job.user, names[0], tasks))
        if tasks <= 0:
            return None, 0
        tries = len(jobs) * min(tasks, max(1, self._scheduler.array_most))
        if any(job.reservation for job in jobs):
            return None, tries  # it is tried on nodes that nobody harvests
        parts: list[Part] = []
        limits_s: list[tuple[float, float]] = []
        for job, names in zip(jobs, where, strict=True):
            found = next(((some, one) for one in names if (some := self._parts(job, one))), None)
            if found is None:
                return None, 0
            parts += found[0]
            limits_s.append(self._limits_s(job, found[1]))
        plan_s, plan = self._plan(jobs)
        if name and len(jobs[0].partition) > 1 and plan & ~_union(part.allowed | part.shared for part in parts):
            plan_s, plan = None, 0  # it is planned in another of its partitions
        wanted = Wanted(
            id=jobs[0].id,
            parts=tuple(parts),
            limit_s=max(limit_s for limit_s, _ in limits_s),
            least_s=max(least_s for _, least_s in limits_s),
            count=tasks,
            plan_s=plan_s,
            plan=plan,
            reserves=all(self._reserves(job) for job in jobs),
        )
        return wanted, tries

    def _barred(self, jobs: Sequence[Job], name: str) -> Wanted | None:
        """The entry of a job that cannot start now, if Slurm shows where it will."""
        plan_s, plan = self._plan(jobs)
        if not plan:
            return None
        limit_s, least_s = self._limits_s(jobs[0], name)
        return Wanted(jobs[0].id, (), limit_s, least_s, plan_s=plan_s, plan=plan, barred=True)

    def _plan(self, jobs: Sequence[Job]) -> tuple[float | None, int]:
        """When and where Slurm shows that a job will start; a start in the past is none (`slurm_plugin.waiting`)."""
        starts_s = [job.start_s for job in jobs if job.start_s is not None and job.start_s > self._snapshot.time_s]
        plan = _union(self._layout.mask(job.sched_nodes) for job in jobs)
        return (max(starts_s), plan) if plan and len(starts_s) == len(jobs) else (None, 0)

    def _takes(self, name: str, job: Job) -> bool:
        """Whether a partition takes a job: it is open, and the job is within its limits, or nothing is known of it."""
        partition = self._snapshot.partitions.get(name)
        if partition is None:
            return True
        least_s = job.time_limit_s if job.request.least_s is None else job.request.least_s
        too_long = least_s is not None and partition.max_time_s is not None and least_s > partition.max_time_s
        too_large = partition.max_nodes is not None and job.node_count > partition.max_nodes
        return partition.state not in _CLOSED and not too_long and not too_large

    def _tasks(self, job: Job) -> int:
        """How many tasks of a job may start: of an array no more than it lets run at once."""
        tasks, at_once = waiting(job.id, max(1, self._scheduler.array_most))
        if not at_once:
            return tasks
        if self._running is None:
            self._running = running_by_array(self._snapshot.jobs)
        return min(tasks, at_once - self._running.get(job.id.partition("_")[0], 0))

    def _within(self, user: str, partition: str, tasks: int) -> int:
        """How many of some tasks Slurm still looks at for their user and partition; they are counted."""
        limits = {
            (user, partition): self._scheduler.depth_user_partition,
            ("", partition): self._scheduler.depth_partition,
            (user, ""): self._scheduler.depth_user,
        }
        for key, most in limits.items():
            if most > 0:
                tasks = min(tasks, most - self._used.get(key, 0))
        if tasks > 0:
            for key in limits:
                self._used[key] = self._used.get(key, 0) + tasks
        return tasks

    def _parts(self, job: Job, name: str) -> tuple[Part, ...]:
        """What a job needs in a partition; () where that can never be."""
        found = demand(self._layout, name, job.request, job.node_count)
        if found is None:
            return ()
        partition = self._snapshot.partitions.get(name)
        if job.request.exclusive or (partition is not None and partition.exclusive):
            return found.parts
        if self._shares is None:
            self._shares = Shares.of(self._nodes, self._numbering)
        room = self._shares.holding(found.asks)
        return tuple(replace(part, shared=part.allowed & room) for part in found.parts) if room else found.parts

    def _limits_s(self, job: Job, name: str) -> tuple[float, float]:
        """How long a job may run in a partition, and for how little it would start."""
        partition = self._snapshot.partitions.get(name)
        most_s = None if partition is None else partition.max_time_s
        known_s = [one for one in (job.time_limit_s, most_s) if one is not None]
        limit_s = min(known_s) if known_s else YEAR_S
        return limit_s, limit_s if job.request.least_s is None else min(limit_s, job.request.least_s)

    def _reserves(self, job: Job) -> bool:
        now_s, eligible_s = self._snapshot.time_s, job.submit_s
        if job.start_s is not None and job.start_s <= now_s and not job.sched_nodes:
            eligible_s = max(eligible_s, job.start_s)  # it had to wait for a time or for another job
        old_enough = now_s - eligible_s >= self._scheduler.reserve_age_s
        return old_enough and job.priority >= self._scheduler.reserve_priority


def _is_barred(job: Job) -> bool:
    """Whether something other than room keeps a job from starting, for all that its reason tells."""
    known = standing(job.reason)
    return known is Standing.BARRED or (known is Standing.ONE_PARTITION and len(job.partition) < 2)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
