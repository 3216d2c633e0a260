"""Gandiva (Xiao et al. 2018), simplified: it observes running jobs and moves, grows and shrinks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studies.crius.baselines.free_gpus import FreeGpus
from studies.crius.baselines.profiled import MOST_GPUS, Profiled
from studies.simulation.types import Allocation, Decision, Moment, Running, SimulatedJob

_INTERVAL_S = 300.0
_PROFILED_S = 60.0
"""A job's rate is read after this time: before, it still restarts."""
_PAYS = 1.1
"""Growth that makes a job faster by less than this factor is taken back."""


class Gandiva:
    """A policy that starts jobs with as many GPUs as they ask for, of the type with most free ones.

    Types count as equal. While a job waits, grown jobs give back their growth, and small jobs move to another type if
    that frees enough GPUs of one. While none waits, the jobs that gain most by their profile grow to twice their GPUs;
    growth that the measured rate does not confirm is taken back and not tried again. Left out: time slicing, packing of
    several jobs on a GPU, and moves for the sake of topology (GPUs of a type are one pool here).
    """

    name = "gandiva"
    interval_s: float | None = _INTERVAL_S

    def __init__(self, known: Profiled) -> None:
        self._known = known
        self._seen: dict[str, tuple[float, Running]] = {}
        self._measured: dict[tuple[str, str, int], float] = {}
        self._failed: set[tuple[str, str, int]] = set()

    def decide(self, moment: Moment) -> Decision:
        """Shrink, start, move or grow jobs."""
        self._look(moment)
        free = FreeGpus(moment)
        waits = [waiting.job for waiting in moment.waiting]
        self._take_back(moment, free)
        running = {each.job.id: each for each in moment.running}
        grown = _Grown(free, running)
        left = []
        for job in waits:
            if not (
                self._starts(job, free)
                or self._shrinks(job, free, running, grown)
                or self._moves(job, free, running, grown)
            ):
                left.append(job)
        if not left:
            self._grow(moment, free)
        return Decision(free.given)

    def _look(self, moment: Moment) -> None:
        """Read the rates of jobs that have had the same GPUs since the last look."""
        seen = {}
        for now in moment.running:
            before = self._seen.get(now.job.id)
            same = before is not None and before[1].since_s == now.since_s
            if before is None or not same or before[0] < now.since_s + _PROFILED_S:
                seen[now.job.id] = (moment.now_s, now)
                continue
            seen[now.job.id] = before
            if moment.now_s > before[0]:
                rate = (before[1].left - now.left) / (moment.now_s - before[0])
                self._measured[now.job.id, now.allocation.gpu_type, now.allocation.gpus] = rate
        self._seen = seen

    def _starts(self, job: SimulatedJob, free: FreeGpus) -> bool:
        """Start a job on the type with the most free GPUs on which it can run; return whether it fits."""
        return any(
            (cell := self._known.cell(job, gpu_type, job.gpus)) is not None and free.take(job.id, cell)
            for gpu_type in _emptiest(free)
        )

    def _take_back(self, moment: Moment, free: FreeGpus) -> None:
        """Shrink jobs that have grown in vain."""
        for running in moment.running:
            job, now = running.job, running.allocation
            after = self._measured.get((job.id, now.gpu_type, now.gpus))
            before = self._measured.get((job.id, now.gpu_type, now.gpus // 2))
            if now.gpus > job.gpus and after is not None and before is not None and after < _PAYS * before:
                self._failed.add((job.id, now.gpu_type, now.gpus))
                if (smaller := self._known.cell(job, now.gpu_type, now.gpus // 2)) is not None:
                    free.take(job.id, smaller)

    def _shrinks(self, job: SimulatedJob, free: FreeGpus, running: Mapping[str, Running], grown: _Grown) -> bool:
        """Free GPUs by shrinking grown jobs to their request, the most grown first; return whether it is enough."""
        for gpu_type in _emptiest(free):
            cell = self._known.cell(job, gpu_type, job.gpus)
            if cell is None or free.free[gpu_type] + grown.gpus[gpu_type] < job.gpus:
                continue
            for _, id in sorted((-back, id) for id, back in grown.jobs[gpu_type].items()):
                if free.free[gpu_type] >= job.gpus:
                    break
                if (smaller := self._known.cell(running[id].job, gpu_type, running[id].job.gpus)) is not None:
                    free.take(id, smaller)
                    grown.note(id, smaller)
            if free.take(job.id, cell):
                return True
        return False

    def _moves(self, job: SimulatedJob, free: FreeGpus, running: Mapping[str, Running], grown: _Grown) -> bool:
        """Free GPUs for a job by moving another one to a type where it still fits; return whether that works."""
        if sum(free.free.values()) < job.gpus:
            return False
        for gpu_type in _emptiest(free):
            cell = self._known.cell(job, gpu_type, job.gpus)
            lacking = job.gpus - free.free[gpu_type]
            if cell is None:
                continue
            here = sorted(
                (id for id, had in free.given.items() if had.gpu_type == gpu_type and had.gpus >= lacking),
                key=lambda id: (free.given[id].gpus, id),
            )
            for id in here:
                if id in running and (other := self._elsewhere(running[id].job, free.given[id], free)) is not None:
                    free.take(id, other)
                    grown.note(id, other)
                    return free.take(job.id, cell)
        return False

    def _elsewhere(self, job: SimulatedJob, had: Allocation, free: FreeGpus) -> Allocation | None:
        for gpu_type in _emptiest(free):
            if gpu_type == had.gpu_type or free.free[gpu_type] < had.gpus:
                continue
            if (cell := self._known.cell(job, gpu_type, had.gpus)) is not None:
                return cell
        return None

    def _grow(self, moment: Moment, free: FreeGpus) -> None:
        """Double the jobs that gain most per GPU by their profile, each once, if their present rate is measured."""
        found = []
        for running in moment.running:
            now = running.allocation
            twice = (running.job.id, now.gpu_type, 2 * now.gpus)
            if 2 * now.gpus > MOST_GPUS or twice in self._failed or running.job.id not in free.given:
                continue
            if (running.job.id, now.gpu_type, now.gpus) not in self._measured:
                continue
            rate = self._known.rate(running.job, now.gpu_type, now.gpus)
            more = self._known.rate(running.job, now.gpu_type, 2 * now.gpus)
            if free.given[running.job.id] == now and rate > 0 and more > _PAYS * rate:
                found.append(((more / rate - 1) / now.gpus, running))
        for _, running in sorted(found, key=lambda each: (-each[0], each[1].job.id)):
            now = running.allocation
            if (cell := self._known.cell(running.job, now.gpu_type, 2 * now.gpus)) is not None:
                free.take(running.job.id, cell)


class _Grown:
    """Running jobs with more GPUs than they asked for: their excess on each type, and its sum."""

    def __init__(self, free: FreeGpus, running: Mapping[str, Running]) -> None:
        self._running = running
        self.jobs: dict[str, dict[str, int]] = {gpu_type: {} for gpu_type in free.free}
        self.gpus = dict.fromkeys(free.free, 0)
        for id, had in free.given.items():
            self._add(id, had)

    def note(self, id: str, now: Allocation) -> None:
        """Record that a running job has another allocation."""
        for gpu_type, jobs in self.jobs.items():
            self.gpus[gpu_type] -= jobs.pop(id, 0)
        self._add(id, now)

    def _add(self, id: str, had: Allocation) -> None:
        if id in self._running and (back := had.gpus - self._running[id].job.gpus) > 0:
            self.jobs[had.gpu_type][id] = back
            self.gpus[had.gpu_type] += back


def _emptiest(free: FreeGpus) -> Sequence[str]:
    """Return the types, those with the most free GPUs first."""
    return sorted(free.free, key=lambda name: (-free.free[name], name))
