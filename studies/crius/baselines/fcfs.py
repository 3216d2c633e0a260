"""First come, first served, alone and with EASY backfilling (simplified): jobs of fixed size, as Slurm starts them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from studies.crius.baselines.free_gpus import FreeGpus
from studies.crius.baselines.profiled import Profiled
from studies.simulation.types import Decision, Moment


class Fcfs:
    """A policy that gives jobs the GPUs that they ask for, in strict order per type; they keep them.

    Each type is a queue of its own, as a partition is: a job never waits for GPUs that it would not use. No real queue
    is served so: see `Easy`. Left out: priorities, limits.
    """

    name = "fcfs"
    interval_s: float | None = None

    def __init__(self, known: Profiled) -> None:
        self._known = known

    def decide(self, moment: Moment) -> Decision:
        """Start the heads of all queues while they fit."""
        free = FreeGpus(moment)
        blocked = set()
        for waiting in moment.waiting:
            job = waiting.job
            if job.gpu_type in blocked or (cell := self._known.cell(job, job.gpu_type, job.gpus)) is None:
                continue  # a job that can never run as requested blocks no other
            if not free.take(job.id, cell):
                blocked.add(job.gpu_type)
        return Decision(free.given)


class Easy:
    """First come, first served with EASY backfilling (Lifka 1995), the least that Slurm does.

    The first job of a queue that does not fit gets a start time: when enough GPUs will be free. Later ones start now if
    that does not delay it. Run times are known exactly here, where Slurm knows time limits.
    """

    name = "easy"
    interval_s: float | None = None

    def __init__(self, known: Profiled) -> None:
        self._known = known

    def decide(self, moment: Moment) -> Decision:
        """Start the heads of all queues while they fit, and behind them jobs that delay none."""
        free = FreeGpus(moment)
        ends: dict[str, list[tuple[float, int]]] = {}
        for running in moment.running:
            allocation = running.allocation
            end_s = moment.now_s + self._known.runs_s(running.job, allocation, running.left)
            ends.setdefault(allocation.gpu_type, []).append((end_s, allocation.gpus))
        promised: dict[str, tuple[float, int]] = {}
        for waiting in moment.waiting:
            job = waiting.job
            cell = self._known.cell(job, job.gpu_type, job.gpus)
            if cell is None:
                continue
            end_s = moment.now_s + self._known.runs_s(job, cell, waiting.left)
            start_s, spare = promised.get(job.gpu_type, (math.inf, 0))
            if end_s > start_s and cell.gpus > spare:
                continue
            if free.take(job.id, cell):
                ends.setdefault(job.gpu_type, []).append((end_s, cell.gpus))
                if end_s > start_s:
                    promised[job.gpu_type] = start_s, spare - cell.gpus
            elif job.gpu_type not in promised:
                promised[job.gpu_type] = _start(free.free.get(job.gpu_type, 0), cell.gpus, ends.get(job.gpu_type, []))
        return Decision(free.given)


def _start(free: int, wanted: int, ends: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Return when `wanted` GPUs will be free, and how many more then are; infinity if there are not enough."""
    for end_s, gpus in sorted(ends):
        free += gpus
        if free >= wanted:
            return end_s, free - wanted
    return math.inf, 0
