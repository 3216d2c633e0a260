"""The queue of Slurm's backfill scheduler, made from a snapshot for the copy of its planner. Pure.

Facts of Slurm 22.05 to 25.05, read in its source (src/plugins/sched/backfill/backfill.c), beside those in `order`:

- Jobs beyond bf_max_job_user, bf_max_job_part or bf_max_job_user_part are passed over; each task of an array that is
  tried counts there.
- bf_max_job_test counts jobs that are tried on nodes: not a job that a limit keeps back, or that no nodes could ever
  run. It is checked between jobs, not between the tasks of an array.
- A job over the partition's MaxTime or MaxNodes is not tried there; MaxTime is the limit of a job without one.
- A partition that is DRAIN starts the jobs queued already; one that is DOWN or INACTIVE starts nothing.
- A cycle ends when bf_max_time is over, and without bf_continue when anything has changed while it slept, wherever it
  is in the queue; the next one begins at the front again. What sdiag calls its depth counts each line that it came to
  and each further task of an array, tried on nodes or not, but no line that a limit of an association keeps back and
  none whose job had started meanwhile.
- A job younger than bf_min_age_reserve or below bf_min_prio_reserve starts now or is not planned.

Not copied: bf_max_job_assoc, bf_max_job_start, bf_job_part_count_reserve, QOS: bftd reads nothing of those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bftd.pool.backfill.demand import demand
from bftd.pool.backfill.job_ids import running_by_array, waiting
from bftd.pool.backfill.model import Component, Numbering, QueueEntry, union
from bftd.pool.backfill.order import QueueLines, lines
from bftd.pool.backfill.shared_nodes import SharedNodes
from bftd.pool.backfill.sizes import NodeDemand
from bftd.pool.backfill.topology import Layout, layout_of, remembered
from slurm_plugin.pilots.pending_reasons import Standing, standing
from slurm_plugin.read.types import Job, Node, Snapshot

YEAR_S = 365 * 86400.0  # for which Slurm plans a job without a limit in a partition without one
# Each task costs the planner time. Slurm plans no more of an array (bf_max_job_array_resv); it may start more at once.
_MOST_TASKS = 1000
# Jobs that are worked out and then not tried, as no nodes could ever run them, count nowhere else, and cost as much.
_MOST_PLACED = 10_000
# A cycle that came this far through its queue may well have seen all of it: some lines count nowhere.
_MOST_OF_QUEUE = 0.9
_CLOSED = frozenset({"DOWN", "INACTIVE"})
_NONE_LENT: Mapping[str, Node] = {}


@dataclass(frozen=True, slots=True)
class Queue:
    """The entries that the planner is to look at, in order, of `queued` lines: one per waiting job and partition.

    `cut` says in words why not all were looked at, "" if all were. `unreadable` counts waiting jobs whose needs are not
    known; they are not among the lines.
    """

    entries: tuple[QueueEntry, ...]
    queued: int
    cut: str = ""
    unreadable: int = 0


def queue(
    snapshot: Snapshot,
    pending: Iterable[Job],
    nodes: Mapping[str, Node],
    numbering: Numbering,
    lent: Mapping[str, Node] = _NONE_LENT,
) -> Queue:
    """Return the queue over `pending`, the regular jobs that wait, and `nodes`, all that any of them may use.

    `lent` are the nodes that our pilot shares with regular jobs, as they will be once it has left.
    """
    waits = lines(pending, snapshot.partitions)
    desk = _Desk(snapshot, nodes, numbering, lent)
    entries: list[QueueEntry] = []
    tried, passed, cut = 0, 0, ""
    reached = _reached(snapshot, waits)
    for index, (jobs, name) in enumerate(waits.in_order()):
        if tried >= snapshot.scheduler.depth:
            cut = f"looks at the first {index:,} of {len(waits):,} waiting jobs, as Slurm does (bf_max_job_test)"
            break
        if reached is not None and passed >= reached:
            cut = f"looks at the first {index:,} of {len(waits):,} waiting jobs: Slurm's last cycles ended there"
            break
        if desk.placed >= max(_MOST_PLACED, snapshot.scheduler.depth):
            cut = f"looks at the first {index:,} of {len(waits):,} waiting jobs: more would take too long"
            break
        wanted, tries = desk.entry(jobs, name)
        tried += tries
        if not any(_is_barred(job) for job in jobs):
            passed += max(tries, len(jobs))
        if wanted is not None:
            entries.append(wanted)
    return Queue(tuple(entries), len(waits), cut, waits.unreadable)


def _reached(snapshot: Snapshot, waits: QueueLines) -> int | None:
    """Return how deep Slurm's last cycles came, if they clearly ended before the end of the queue; else None.

    Lines that may count in no cycle are not held against it: barred jobs, and all but one line of each job, as the
    job may have started by another one.
    """
    found = snapshot.scheduler.reached
    if found is None or found.looked >= _MOST_OF_QUEUE * found.queued:
        return None
    jobs = (one if isinstance(one, Job) else one[0] for one in waits.jobs)
    kinds = Counter((job.reason, len(job.partition)) for job in jobs)  # a handful for tens of thousands of jobs
    uncounted = sum(
        count * (1.0 if _bars(reason, partitions) else 1.0 - 1.0 / max(1, partitions))
        for (reason, partitions), count in kinds.items()
    )
    return found.looked if found.looked + uncounted < _MOST_OF_QUEUE * found.queued else None


@dataclass(frozen=True, slots=True)
class _Rules:
    """The limits of a partition on a job."""

    most_s: float | None = None
    most_nodes: int | None = None
    exclusive: bool = False


_NO_RULES = _Rules()  # of an unknown partition


@dataclass(frozen=True, slots=True)
class _Placed:
    """A job's needs in one partition, its time limits, and the nodes on which Slurm shows that it will start.

    Without `parts` no nodes could ever run it. `asks` is its need on nodes in use, None if it shares none; `together`
    such jobs fit on an idle node.
    """

    parts: tuple[Component, ...]
    limit_s: float
    least_s: float
    plan: int
    asks: NodeDemand | None
    together: int


@remembered(1 << 14)  # most of a long queue is as it was at the poll before
def _placed(layout: Layout, job: Job, name: str, rules: _Rules) -> _Placed | None:
    """Place a job in the partition `name`; None if it exceeds a limit of the partition."""
    limit_s, least_s = _limits_s(job, rules)
    own_s = job.time_limit_s if job.request.least_s is None else job.request.least_s
    if rules.most_s is not None and own_s is not None and own_s > rules.most_s:
        return None
    if rules.most_nodes is not None and job.node_count > rules.most_nodes:
        return None
    plan = layout.mask(job.sched_nodes)
    found = demand(layout, name, job.request, job.node_count)
    if found is None:
        return _Placed((), limit_s, least_s, plan, None, 1)
    if len(job.partition) > 1 and plan & ~union(part.allowed for part in found.parts):
        plan = 0  # it is planned in another of its partitions
    shares = not job.request.exclusive and not rules.exclusive
    return _Placed(found.parts, limit_s, least_s, plan, found.asks if shares else None, found.together)


def _limits_s(job: Job, rules: _Rules) -> tuple[float, float]:
    """Return how long a job may run in a partition, and the shortest time for which it would start."""
    known_s = [one for one in (job.time_limit_s, rules.most_s) if one is not None]
    limit_s = min(known_s) if known_s else YEAR_S
    return limit_s, limit_s if job.request.least_s is None else min(limit_s, job.request.least_s)


class _Desk:
    """The maker of entries from lines, first to last; it counts the jobs of users and partitions as Slurm does."""

    def __init__(
        self, snapshot: Snapshot, nodes: Mapping[str, Node], numbering: Numbering, lent: Mapping[str, Node]
    ) -> None:
        self.placed = 0
        self._now_s = snapshot.time_s
        self._jobs = snapshot.jobs
        self._scheduler = snapshot.scheduler
        self._rules = {
            name: None if one.state in _CLOSED else _Rules(one.max_time_s, one.max_nodes, one.exclusive)
            for name, one in snapshot.partitions.items()
        }
        self._nodes = nodes
        self._numbering = numbering
        self._lent = lent
        self._layout = layout_of(nodes, numbering)
        own = snapshot.scheduler
        self._is_limited = max(own.depth_user, own.depth_partition, own.depth_user_partition) > 0
        self._used: dict[tuple[str, str], int] = {}
        # made on first use
        self._shares: SharedNodes | None = None
        self._yields: SharedNodes | None = None
        self._running: Mapping[str, int] | None = None

    def entry(self, jobs: Sequence[Job], name: str) -> tuple[QueueEntry | None, int]:
        """Return the entry of a line, None if there is none, and how many tries it counts as."""
        if not name:
            return self._together(jobs)
        job = jobs[0]
        if _is_barred(job):
            return self._barred(jobs), 0
        if self._is_full(job.user, name) or (placed := self._place(job, name)) is None:
            return None, 0
        tasks = self._tasks(job)
        if tasks <= 0:  # as many of its tasks run as may
            return self._barred(jobs), 0
        if (tasks := self._within(job.user, name, tasks)) <= 0:
            return None, 0
        tries = min(tasks, max(1, self._scheduler.array_most))
        if job.reservation:
            return None, tries  # it is tried on nodes that nobody harvests
        if not placed.parts:
            return None, 0
        parts = placed.parts if placed.asks is None else self._shared(placed, placed.asks)
        plan_s, plan = (job.start_s, placed.plan) if placed.plan and self._is_planned(job) else (None, 0)
        limit_s, least_s = placed.limit_s, placed.least_s
        return QueueEntry(job.id, parts, limit_s, least_s, tasks, plan_s, plan, False, self._reserves(job)), tries

    def _together(self, jobs: Sequence[Job]) -> tuple[QueueEntry | None, int]:
        """Return one entry for all components of a job, each in the first of its partitions where it could run."""
        if any(_is_barred(job) for job in jobs):
            return self._barred(jobs), 0
        found: list[tuple[Job, str, _Placed]] = []
        for job in jobs:
            for name in job.partition:
                if (placed := self._place(job, name)) is not None and placed.parts:
                    found.append((job, name, placed))
                    break
            else:
                return None, 0
        if min(self._within(job.user, name, 1) for job, name, _ in found) <= 0:
            return None, 0
        if any(job.reservation for job in jobs):
            return None, len(jobs)
        parts: list[Component] = []
        for _, _, placed in found:
            parts += placed.parts if placed.asks is None else self._shared(placed, placed.asks)
        limit_s = max(placed.limit_s for _, _, placed in found)
        least_s = max(placed.least_s for _, _, placed in found)
        plan_s, plan = self._plan(jobs)
        reserves = all(self._reserves(job) for job in jobs)
        return QueueEntry(jobs[0].id, tuple(parts), limit_s, least_s, 1, plan_s, plan, False, reserves), len(jobs)

    def _barred(self, jobs: Sequence[Job]) -> QueueEntry | None:
        """Return the entry of a job that cannot start now, if Slurm shows where it will."""
        plan_s, plan = self._plan(jobs)
        if not plan:
            return None
        limit_s, least_s = _limits_s(jobs[0], self._rules.get(jobs[0].partition[0]) or _NO_RULES)
        return QueueEntry(jobs[0].id, (), limit_s, least_s, plan_s=plan_s, plan=plan, barred=True)

    def _plan(self, jobs: Sequence[Job]) -> tuple[float | None, int]:
        """Return when and where Slurm shows that all of some jobs will start."""
        starts_s = [job.start_s for job in jobs if job.start_s is not None and self._is_planned(job)]
        plan = union(self._layout.mask(job.sched_nodes) for job in jobs)
        return (max(starts_s), plan) if plan and len(starts_s) == len(jobs) else (None, 0)

    def _is_planned(self, job: Job) -> bool:
        """Whether Slurm shows a start in the future; a past one is when the job became eligible, or was to start."""
        return job.start_s is not None and job.start_s > self._now_s

    def _place(self, job: Job, name: str) -> _Placed | None:
        """Place a job in one of its partitions; None if Slurm does not queue it there."""
        rules = self._rules.get(name, _NO_RULES)
        self.placed += 1
        return None if rules is None else _placed(self._layout, job, name, rules)

    def _tasks(self, job: Job) -> int:
        """Return how many tasks of a job may start: no more of an array than it lets run at once."""
        tasks, at_once = waiting(job.id, _MOST_TASKS)
        if not at_once:
            return tasks
        if self._running is None:
            self._running = running_by_array(self._jobs)
        return min(tasks, at_once - self._running.get(job.id.partition("_")[0], 0))

    def _within(self, user: str, partition: str, tasks: int) -> int:
        """Return how many of some tasks Slurm still looks at for their user and partition, and count these."""
        if not self._is_limited:
            return tasks
        limits = self._limits(user, partition)
        for key, most in limits.items():
            if most > 0:
                tasks = min(tasks, most - self._used.get(key, 0))
        for key in limits:
            self._used[key] = self._used.get(key, 0) + tasks
        return tasks

    def _is_full(self, user: str, partition: str) -> bool:
        """Whether Slurm looks at no more jobs of a user in a partition; checked before a job is worked out."""
        if not self._is_limited:
            return False
        return any(0 < most <= self._used.get(key, 0) for key, most in self._limits(user, partition).items())

    def _limits(self, user: str, partition: str) -> dict[tuple[str, str], int]:
        """Return the most jobs of a user and of a partition that are looked at; 0 means any number."""
        return {
            (user, partition): self._scheduler.depth_user_partition,
            ("", partition): self._scheduler.depth_partition,
            (user, ""): self._scheduler.depth_user,
        }

    def _shared(self, placed: _Placed, asks: NodeDemand) -> tuple[Component, ...]:
        """Return the parts of a job that shares nodes, with the nodes in use that it fits on."""
        if self._shares is None:
            self._shares = SharedNodes.of(self._nodes, self._numbering)
            self._yields = SharedNodes.of(self._lent, self._numbering) if self._lent else None
        shared, together = self._shares.holding(asks), self._shares.together(asks, placed.together)
        yields = 0 if self._yields is None else self._yields.holding(asks) & ~shared
        return tuple(
            [
                replace(part, shared=part.allowed & shared, together=together, yields=part.allowed & yields)
                for part in placed.parts
            ]
        )

    def _reserves(self, job: Job) -> bool:
        now_s, eligible_s = self._now_s, job.submit_s
        if job.start_s is not None and job.start_s <= now_s and not job.sched_nodes:
            eligible_s = max(eligible_s, job.start_s)  # it had to wait for a time or for another job
        old_enough = now_s - eligible_s >= self._scheduler.reserve_age_s
        return old_enough and job.priority >= self._scheduler.reserve_priority


def _is_barred(job: Job) -> bool:
    """Whether something other than a lack of nodes keeps a job from starting, as far as its reason tells."""
    return _bars(job.reason, len(job.partition))


def _bars(reason: str, partitions: int) -> bool:
    known = standing(reason)
    return known is Standing.BARRED or (known is Standing.ONE_PARTITION and partitions < 2)
