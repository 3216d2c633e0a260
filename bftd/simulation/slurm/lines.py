"""The lines of the simulated queue: a job in each of its partitions, and the priorities that order them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Protocol

from bftd.pool.backfill.model import Component, QueueEntry
from bftd.pool.backfill.node_choice import NodeNeed
from bftd.pool.backfill.order import line_rank
from bftd.simulation.slurm.limits import Bound
from bftd.simulation.slurm.model import JobRun, SimulatedJob, SimulatedPartition, SimulatedSite
from bftd.simulation.slurm.priority import FairTree, Multifactor

_PLAIN = SimulatedPartition(0)


class CyclePlans(Protocol):
    """The plans of one backfill cycle, which are worked out when they are needed."""

    def resolve(self, line: WaitingJob) -> None:
        """Go on until the plan of a line is known."""

    def tell(self, before_s: float) -> None:
        """Go on until all plans are known that start before a time."""


class WaitingJob:
    """A line of the queue: a job in one of its partitions, from its submission on; `lines` are all of the job's.

    `known_s` and `known` are its plan as far as it is known: `plans` of the last cycle may have yet to come to its
    `turn`.
    """

    __slots__ = (
        "bounds",
        "eligible_s",
        "entry",
        "job",
        "known",
        "known_s",
        "lines",
        "locked_s",
        "need",
        "part",
        "partition",
        "place",
        "plans",
        "run",
        "turn",
    )

    def __init__(self, job: SimulatedJob, run: JobRun, part: Component, partition: SimulatedPartition) -> None:
        self.job = job
        self.run = run
        self.part = part
        self.partition = partition
        self.need = NodeNeed(max(1, part.need, part.required.bit_count()), part.required, part.contiguous)
        self.entry = QueueEntry(str(job.number), (part,), job.limit_s, job.limit_s)
        self.lines: tuple[WaitingJob, ...] = (self,)
        self.bounds: tuple[Bound, ...] = ()
        self.known_s: float | None = None
        self.known = 0
        self.plans: CyclePlans | None = None
        self.turn = 0
        self.locked_s = -inf
        self.eligible_s = job.eligible_s
        self.ranked(1)

    @property
    def plan_s(self) -> float | None:
        """The start that the job is planned for; None if it has no plan."""
        if self.plans is not None:
            self.plans.resolve(self)
        return self.known_s

    @property
    def plan(self) -> int:
        """The nodes that it is planned on."""
        if self.plans is not None:
            self.plans.resolve(self)
        return self.known

    def planned(self, start_s: float | None, mask: int) -> None:
        """Give it a plan in place of that of the last cycle."""
        self.plans, self.known_s, self.known = None, start_s, mask

    def ranked(self, priority: int) -> None:
        """Give the line its place in the queue."""
        self.place = line_rank(self.partition.tier, priority, self.job.booked is not None), self.job.number


def lines_of(site: SimulatedSite, job: SimulatedJob) -> tuple[WaitingJob, ...]:
    """Return the lines of a job, one for each of its partitions."""
    run, part = JobRun(job), job.component
    bounds = site.limits.bounds(job.qos, job.account, job.user) if site.limits is not None else ()
    if not job.partitions:
        lines: tuple[WaitingJob, ...] = (WaitingJob(job, run, part, _PLAIN),)
    else:
        own = [site.partitions[place] for place in job.partitions]
        lines = tuple(
            WaitingJob(job, run, replace(part, allowed=part.allowed & one.mask, within=one.mask), one) for one in own
        )
    for line in lines:
        line.lines, line.bounds = lines, bounds
    return lines


class Priorities:
    """The priorities of a site's waiting jobs, and the usage of running ones that fair share goes by."""

    def __init__(self, settings: Multifactor, site: SimulatedSite) -> None:
        self.period_s = settings.calc_period_s
        self._settings = settings
        self._nodes = len(site.numbering.names)
        self._greatest = max((one.factor for one in site.partitions), default=1)
        self._tree = FairTree(settings)
        self._shares: dict[tuple[str, str], float] = {}
        self._calculated_s = -inf

    def calculate(self, running: Iterable[WaitingJob], waiting: Iterable[WaitingJob], now_s: float) -> None:
        """Count what running jobs have used, rank the users, and give all waiting jobs their priority anew."""
        if self._calculated_s > -inf:
            self._tree.decay(now_s - self._calculated_s)
        for line in running:
            self.use(line, now_s)
        self._calculated_s = now_s
        self._shares = self._tree.factors()
        for line in waiting:
            self.rank(line, now_s)

    def use(self, line: WaitingJob, now_s: float) -> None:
        """Count what a job has used since the last calculation."""
        used_s = now_s - max(line.run.start_s, self._calculated_s)
        self._tree.add(line.job.account, line.job.user, line.run.nodes.bit_count(), used_s)

    def rank(self, line: WaitingJob, now_s: float) -> None:
        """Give a line its place in the queue, by the users' ranks of the last calculation."""
        job = line.job
        line.ranked(
            self._settings.of(
                now_s - line.eligible_s,
                line.need.count / self._nodes,
                line.partition.factor / self._greatest if self._greatest else 0.0,
                job.qos,
                self._shares.get((job.account, job.user), 0.0),
            )
        )
