"""The present use of idle nodes at HPC centres: rigid jobs in a preemptible partition, requeued as a whole.

A simulation of Slurm, not of bftd. All jobs have the same number of nodes. A job starts, first come first served, when
enough nodes are idle. It is killed when one of its nodes goes, and resumes from its last checkpoint.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay.account import Account
from bftd.simulation.replay.backlog import Backlog
from bftd.simulation.replay.options import Options

if TYPE_CHECKING:
    from bftd.simulation.trace import Trace

_Key = tuple[int, str]


@dataclass
class _Job:
    """A trainer as a rigid job of `size` nodes; `saved` is the state of its last checkpoint, in samples."""

    order: int
    spec: SimTrainer
    size: int
    submitted_s: float
    saved: float = 0.0
    started_s: float = 0.0
    first_s: float | None = None

    @property
    def rate(self) -> float:
        return self.spec.rates[self.size]

    @property
    def done_s(self) -> float:
        return self.started_s + self.spec.up_cost_s + (self.spec.work_samples - self.saved) / self.rate


class _Slurm:
    """The preemptible partition: idle nodes, running jobs and the queue."""

    def __init__(self, trainers: Sequence[SimTrainer], options: Options) -> None:
        self.options = options
        self.account = Account()
        self.backlog = Backlog(trainers, endless=options.endless)
        self.free: list[_Key] = []
        self.owner: dict[str, _Job] = {}
        self.running: dict[int, tuple[_Job, list[str]]] = {}
        self.queue: list[tuple[int, _Job]] = []
        self.arrivals = 0
        self.pool = 0

    def arrive(self, now_s: float) -> None:
        """Queue the jobs submitted by now."""
        for spec in self.backlog.arrived(now_s, spare=self.options.pj_max - len(self.queue)):
            size = min(max(self.options.scavenger_nodes or 1, spec.nodes_min), spec.nodes_max)
            if spec.rates[size] > 0:
                heapq.heappush(self.queue, (self.arrivals, _Job(self.arrivals, spec, size, now_s)))
            self.arrivals += 1

    def join(self, names: Sequence[str]) -> None:
        """Add nodes that become idle."""
        self.pool += len(names)
        for name in names:
            insort(self.free, (len(name), name))

    def leave(self, now_s: float, names: Sequence[str]) -> None:
        """Remove nodes, and kill every job that has one of them."""
        killed = {self.owner[name].order: self.owner[name] for name in names if name in self.owner}
        for job in killed.values():
            self._end(now_s, job, killed=True)
            heapq.heappush(self.queue, (job.order, job))
        if killed:
            self.account.preempted_s.append(now_s)
            self.account.preemptions += len(killed)
        self.pool -= len(names)
        for name in names:
            del self.free[bisect_left(self.free, (len(name), name))]

    def finish(self, now_s: float) -> None:
        """End the jobs whose work is done."""
        for job in [job for job, _ in self.running.values() if job.done_s <= now_s]:
            self._end(now_s, job, killed=False)
            self.account.completed(job.spec, now_s - (job.submitted_s if job.first_s is None else job.first_s))

    def start(self, now_s: float) -> None:
        """Start jobs in their order while there are nodes for the first of the queue."""
        while self.queue and len(self.running) < self.options.pj_max and self.queue[0][1].size <= len(self.free):
            _, job = heapq.heappop(self.queue)
            nodes = [name for _, name in self.free[: job.size]]
            del self.free[: job.size]
            job.started_s = now_s
            job.first_s = now_s if job.first_s is None else job.first_s
            self.running[job.order] = (job, nodes)
            self.owner |= dict.fromkeys(nodes, job)

    def note(self, now_s: float) -> None:
        """Record the state from now on."""
        rate = sum(job.rate for job, _ in self.running.values())
        self.account.note(now_s, rate, self.pool, len(self.owner), len(self.owner))
        self.account.decided_s.append(now_s)

    def close(self, end_s: float) -> None:
        """Finish the trace: running jobs count their work so far, saved or not."""
        self.finish(end_s)
        for job, _ in self.running.values():
            stalled_s = min(job.spec.up_cost_s, end_s - job.started_s)
            self.account.stand_still(job.started_s, job.size * stalled_s)
            self.account.take_off(end_s, "rescale", job.rate * stalled_s)
            self.account.earned[job.spec.name] = job.saved + job.rate * (end_s - job.started_s - stalled_s)
        self.account.earned |= {job.spec.name: job.saved for _, job in self.queue}

    def _end(self, now_s: float, job: _Job, *, killed: bool) -> None:
        """Remove a job from its nodes, and charge its start and its unsaved work."""
        _, nodes = self.running.pop(job.order)
        for name in nodes:
            del self.owner[name]
            insort(self.free, (len(name), name))
        ran_s = now_s - job.started_s
        stalled_s = min(job.spec.up_cost_s, ran_s)
        self.account.stand_still(job.started_s, job.size * stalled_s)
        self.account.take_off(now_s, "rescale", job.rate * stalled_s)
        if killed:
            unsaved_s = (ran_s - stalled_s) % self.options.checkpoint_every_s
            job.saved += job.rate * (ran_s - stalled_s - unsaved_s)
            self.account.take_off(now_s, "preempt", job.rate * unsaved_s)


def replay(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options, progress: Callable[[float], None] | None = None
) -> Account:
    """Replay a trace with rigid jobs; arrivals and completions between two changes of the pool count at once."""
    slurm = _Slurm(trainers, options)
    changes = trace.changes()
    change = next(changes, None)
    now_s, end_s = 0.0, trace.duration_s
    while now_s < end_s:
        slurm.finish(now_s)
        slurm.arrive(now_s)
        if change is not None and change.time_s <= now_s:
            slurm.leave(now_s, change.left)
            slurm.join(change.joined)
            change = next(changes, None)
        slurm.start(now_s)
        slurm.note(now_s)
        if progress is not None:
            progress(now_s / end_s)
        change_s = change.time_s if change is not None else inf
        done_s = min((job.done_s for job, _ in slurm.running.values()), default=inf)
        now_s = max(now_s, min(change_s, slurm.backlog.next_s, done_s))
    slurm.close(end_s)
    return slurm.account


def sizes(trainers: Sequence[SimTrainer]) -> tuple[int, ...]:
    """Return the job sizes worth trying: powers of 2 up to the largest trainer's maximum."""
    most = max(trainer.nodes_max for trainer in trainers)
    return tuple(2**power for power in range(most.bit_length()))
