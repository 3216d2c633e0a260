"""ElasticFlow (Gu et al. 2023), simplified: least shares first, the rest to the jobs that it helps most."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from studies.crius.baselines.free_gpus import FreeGpus
from studies.crius.baselines.profiled import MOST_GPUS, Profiled
from studies.simulation.engine import RESTART_S
from studies.simulation.types import Allocation, Decision, Moment, SimulatedJob


class ElasticFlow:
    """A policy that admits a job when its least share fits beside all others', and keeps that share until it ends.

    With loosened deadlines (ElasticFlow-LS, the default) the least share is the fewest GPUs that data parallelism fits
    in, which for large models is more than adaptive parallelism needs. With `deadlines` it is the fewest that end the
    job in time, a restart included, and a job is dropped as soon as no share would. The rest goes, in powers of two, to
    the job whose throughput gains most per GPU. It knows one kind of GPU: each job has the type that it asks for. Left
    out: shares that change from time slot to time slot up to a deadline, and buddy placement.
    """

    interval_s: float | None = None

    def __init__(self, known: Profiled, *, deadlines: bool = False) -> None:
        self._known = known
        self._deadlines = deadlines
        self.name = "elasticflow" if deadlines else "elasticflow-ls"

    def decide(self, moment: Moment) -> Decision:
        """Admit jobs in order, then hand out the rest by marginal return."""
        free = FreeGpus(moment, keep=False)
        jobs: dict[str, SimulatedJob] = {}
        dropped = set()
        lefts: list[tuple[SimulatedJob, float, Allocation | None]]
        lefts = [(each.job, each.left, each.allocation) for each in moment.running]
        lefts += [(each.job, each.left, None) for each in moment.waiting]
        for job, left, held in lefts:
            least = self._least(job, left, held, moment)
            if least == 0 and self._late(job):
                if held is None:
                    dropped.add(job.id)
                    continue
                least = self._known.least(job, job.gpu_type, moment.capacity.get(job.gpu_type, 0))
            cell = self._known.cell(job, job.gpu_type, least) if least else None
            if cell is not None and free.take(job.id, cell):
                jobs[job.id] = job
        self._grow(jobs, free, {job.id: (left, held) for job, left, held in lefts}, moment.now_s)
        return Decision(free.given, frozenset(dropped))

    def _late(self, job: SimulatedJob) -> bool:
        return self._deadlines and job.deadline_s is not None

    def _least(self, job: SimulatedJob, left: float, held: Allocation | None, moment: Moment) -> int:
        """Return the least share, 0 if there is none; a job that has run pays a restart to leave `held`."""
        most = moment.capacity.get(job.gpu_type, 0)
        least = self._known.least(job, job.gpu_type, most)
        if not least:
            return 0
        while least <= min(most, MOST_GPUS):
            if self._in_time(job, left, held, least, moment.now_s):
                return least
            least *= 2
        return 0

    def _in_time(self, job: SimulatedJob, left: float, held: Allocation | None, gpus: int, now_s: float) -> bool:
        """Whether a job ends by its deadline with `gpus` GPUs; always true without one."""
        if not self._late(job) or job.deadline_s is None:
            return True
        rate = self._known.rate(job, job.gpu_type, gpus)
        stays = held.gpus == gpus if held is not None else left >= job.iterations
        return rate > 0 and now_s + (0.0 if stays else RESTART_S) + left / rate <= job.deadline_s

    def _grow(
        self,
        jobs: dict[str, SimulatedJob],
        free: FreeGpus,
        lefts: Mapping[str, tuple[float, Allocation | None]],
        now_s: float,
    ) -> None:
        """Double the job with the greatest gain per GPU, over and over, but none that a restart would make late."""
        heap: list[tuple[float, str]] = []
        for id, job in jobs.items():
            self._offer(heap, job, free.given[id].gpus)
        while heap:
            _, id = heapq.heappop(heap)
            job, gpus = jobs[id], 2 * free.given[id].gpus
            cell = self._known.cell(job, job.gpu_type, gpus)
            in_time = self._in_time(job, *lefts[id], gpus, now_s) or not self._in_time(
                job, *lefts[id], gpus // 2, now_s
            )
            if cell is not None and in_time and free.take(id, cell):
                self._offer(heap, job, gpus)

    def _offer(self, heap: list[tuple[float, str]], job: SimulatedJob, gpus: int) -> None:
        if 2 * gpus > MOST_GPUS:
            return
        rate, more = (self._known.rate(job, job.gpu_type, count) for count in (gpus, 2 * gpus))
        asked = self._known.asked(job)
        if more > rate and asked > 0:
            heapq.heappush(heap, (-(more - rate) / asked / gpus, job.id))
