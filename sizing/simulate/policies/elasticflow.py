"""ElasticFlow (Gu et al. 2023), simplified: least shares first, what is left over to whom it helps the most."""

from __future__ import annotations

import heapq

from sizing.simulate.policies.profiled import MOST_GPUS, Profiled
from sizing.simulate.policies.room import Room
from sizing.simulate.types import Decision, Moment, SimulatedJob


class ElasticFlow:
    """A job is admitted when its least share fits beside all others', and keeps that share until it ends.

    With loosened deadlines (ElasticFlow-LS, the default) the least share is the fewest GPUs that data parallelism fits
    in, which for large models is more than adaptive parallelism needs; with `deadlines` it is the fewest that end the
    job in time, and a job is dropped as soon as no share would. What is left goes, in powers of two, to the job whose
    throughput gains the most for a GPU. It knows one kind of GPU: each job has the type that it asks for. Left out:
    shares that change from time slot to time slot up to a deadline, and buddy placement.
    """

    interval_s: float | None = None

    def __init__(self, known: Profiled, *, deadlines: bool = False) -> None:
        self._known = known
        self._deadlines = deadlines
        self.name = "elasticflow" if deadlines else "elasticflow-ls"

    def decide(self, moment: Moment) -> Decision:
        """Admits in order, then hands out the rest by marginal return."""
        room = Room(moment, keep=False)
        jobs: dict[str, SimulatedJob] = {}
        dropped = set()
        lefts = [(each.job, each.left, True) for each in moment.running]
        lefts += [(each.job, each.left, False) for each in moment.waiting]
        for job, left, runs in lefts:
            least = self._least(job, left, moment)
            if least == 0 and self._late(job):
                if not runs:
                    dropped.add(job.id)
                    continue
                least = self._known.least(job, job.gpu_type, moment.capacity.get(job.gpu_type, 0))
            cell = self._known.cell(job, job.gpu_type, least) if least else None
            if cell is not None and room.take(job.id, cell):
                jobs[job.id] = job
        self._grow(jobs, room)
        return Decision(room.given, frozenset(dropped))

    def _late(self, job: SimulatedJob) -> bool:
        return self._deadlines and job.deadline_s is not None

    def _least(self, job: SimulatedJob, left: float, moment: Moment) -> int:
        """The least share, 0 where there is none."""
        most = moment.capacity.get(job.gpu_type, 0)
        least = self._known.least(job, job.gpu_type, most)
        if not least or not self._late(job) or job.deadline_s is None:
            return least
        until_s = job.deadline_s - moment.now_s
        while least <= min(most, MOST_GPUS):
            rate = self._known.rate(job, job.gpu_type, least)
            if rate > 0 and left / rate <= until_s:
                return least
            least *= 2
        return 0

    def _grow(self, jobs: dict[str, SimulatedJob], room: Room) -> None:
        """Doubles the job with the greatest gain a GPU, over and over."""
        heap: list[tuple[float, str]] = []
        for id, job in jobs.items():
            self._offer(heap, job, room.given[id].gpus)
        while heap:
            _, id = heapq.heappop(heap)
            job, gpus = jobs[id], 2 * room.given[id].gpus
            cell = self._known.cell(job, job.gpu_type, gpus)
            if cell is not None and room.take(id, cell):
                self._offer(heap, job, gpus)

    def _offer(self, heap: list[tuple[float, str]], job: SimulatedJob, gpus: int) -> None:
        if 2 * gpus > MOST_GPUS:
            return
        rate, more = (self._known.rate(job, job.gpu_type, count) for count in (gpus, 2 * gpus))
        asked = self._known.asked(job)
        if more > rate and asked > 0:
            heapq.heappush(heap, (-(more - rate) / asked / gpus, job.id))
