"""Gavel (Narayanan et al. 2020), simplified: shares of time on each GPU type by a linear program, kept in rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studies.crius.baselines.free_gpus import FreeGpus
from studies.crius.baselines.profiled import Profiled
from studies.crius.baselines.shares import shares
from studies.simulation.types import Decision, Moment, SimulatedJob

_ROUND_S = 360.0
"""Gavel's own rounds are six minutes."""
_LEAST_SHARE = 1e-6


class Gavel:
    """A policy by a linear program for each job's share of time on each type; a job keeps its count of GPUs.

    It maximises the sum of throughputs, each relative to the job's own with its request, or with `fair` the least of
    them. Each round the jobs with the largest ratio of their share to the time that they really had there get GPUs;
    between rounds only idle GPUs are given. The program is solved again in the first round after jobs have come or
    ended. Left out: sharing a GPU, consolidated placement, policies with deadlines and of users.
    """

    interval_s: float | None = _ROUND_S

    def __init__(self, known: Profiled, *, fair: bool = False) -> None:
        self._known = known
        self._fair = fair
        self.name = "gavel-fair" if fair else "gavel"
        self._shares: Mapping[tuple[str, str], float] = {}
        self._received: dict[tuple[str, str], float] = {}
        self._looked_s = 0.0
        self._round_s = float("-inf")
        self._changed = True

    def decide(self, moment: Moment) -> Decision:
        """Start a new round if one is due, otherwise give only idle GPUs."""
        self._account(moment)
        self._changed = self._changed or bool(moment.arrived) or moment.ended
        jobs = [*(each.job for each in moment.running), *(each.job for each in moment.waiting)]
        due = moment.now_s >= self._round_s + _ROUND_S
        free = FreeGpus(moment, keep=not due)
        if due:
            self._round_s = moment.now_s
            if self._changed:
                self._shares = self._solved(jobs, moment.capacity)
                self._changed = False
        has = {each.job.id: each.allocation.gpu_type for each in moment.running}
        by_id = {job.id: job for job in jobs}
        for id, gpu_type in self._order(by_id, has, moment.now_s):
            if id not in free.given:
                self._give(by_id[id], gpu_type, free)
        for job in jobs:  # GPUs that the program leaves idle go to any job that can use them
            for gpu_type in self._by_speed(job, moment.capacity):
                if job.id not in free.given:
                    self._give(job, gpu_type, free)
        return Decision(free.given)

    def _account(self, moment: Moment) -> None:
        """Add up the time that each job has had each type."""
        for each in moment.running:
            key = (each.job.id, each.allocation.gpu_type)
            passed_s = moment.now_s - max(self._looked_s, each.since_s)
            self._received[key] = self._received.get(key, 0.0) + max(0.0, passed_s)
        self._looked_s = moment.now_s

    def _solved(self, jobs: Sequence[SimulatedJob], capacity: Mapping[str, int]) -> Mapping[tuple[str, str], float]:
        gains = {}
        for job in jobs:
            asked = self._known.asked(job)
            for gpu_type in capacity:
                rate = self._known.rate(job, gpu_type, job.gpus)
                if rate > 0 and asked > 0 and self._known.cell(job, gpu_type, job.gpus) is not None:
                    gains[job.id, gpu_type] = rate / asked
        return shares(gains, {job.id: job.gpus for job in jobs}, capacity, fair=self._fair)

    def _order(
        self, jobs: Mapping[str, SimulatedJob], has: Mapping[str, str], now_s: float
    ) -> Sequence[tuple[str, str]]:
        """Return jobs and types by priority, the share over the time received; among equals, running jobs stay."""

        def key(pair: tuple[str, str]) -> tuple[float, bool, float, str]:
            share, lived_s = self._shares[pair], max(now_s - jobs[pair[0]].submit_s, 1.0)
            received = self._received.get(pair, 0.0) / lived_s
            priority = share / received if received > 0 else float("inf")
            # all jobs that have had at least their share are equal
            return (-min(priority, 1e9) if priority > 1 else -1.0, has.get(pair[0]) != pair[1], -share, pair[0])

        return sorted((pair for pair in self._shares if pair[0] in jobs), key=key)

    def _give(self, job: SimulatedJob, gpu_type: str, free: FreeGpus) -> None:
        cell = self._known.cell(job, gpu_type, job.gpus)
        if cell is not None:
            free.take(job.id, cell)

    def _by_speed(self, job: SimulatedJob, capacity: Mapping[str, int]) -> Sequence[str]:
        rates = {gpu_type: self._known.rate(job, gpu_type, job.gpus) for gpu_type in capacity}
        return sorted((name for name, rate in rates.items() if rate > 0), key=lambda name: (-rates[name], name))
