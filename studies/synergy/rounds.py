"""A round-based scheduler (Synergy, section 3): each round the first jobs of an order are packed onto the servers.

Runnable are the first jobs of the order, as long as their GPUs together do not exceed the cluster's: no job is passed
over for a later one, so a job that does not fit ends the list. If the same jobs are runnable as before, nothing
changes; otherwise all are packed anew, by a packer that is told the current shares, so that jobs can stay where they
are. The policy is asked only at its rounds, as in the paper (`simulate_in(..., rounds=True)`): in between, arriving
jobs wait, and freed GPUs stay idle.
"""

from __future__ import annotations

from collections.abc import Mapping

from sizing.cpu.sensitivity.matrix import Matrix
from studies.simulation.world import Decision, Moment, SimulatedJob
from studies.synergy.job_orders import Order, Standing
from studies.synergy.packing.types import Packing, PackJob, Servers
from studies.synergy.servers import Placed
from studies.synergy.stable_assignment import Repacker

ROUND_S = 300.0
"""The paper's round length."""


class Rounds:
    """An order and a packer, on servers; `told` are the matrices that the packer sees, by model."""

    def __init__(
        self,
        order: Order,
        packer: Repacker,
        servers: Servers,
        told: Mapping[str, Matrix],
        *,
        name: str = "rounds",
        interval_s: float = ROUND_S,
    ) -> None:
        self.name = name
        self.interval_s: float | None = interval_s
        self._order, self._packer, self._servers, self._told = order, packer, servers, told
        self._rates = {model: matrix.rate(servers.proportional) for model, matrix in told.items()}
        self._attained: dict[str, float] = {}
        self._seen_s = 0.0
        self._packed: set[str] = set()
        self.packings = 0
        """The number of packings so far."""

    def decide(self, moment: Moment[Placed]) -> Decision[Placed]:
        """Return the jobs whose turn it is, each with its shares."""
        for each in moment.running:
            since_s = max(each.since_s, self._seen_s)
            had = self._attained.get(each.job.id, 0.0)
            self._attained[each.job.id] = had + each.allocation.gpus * (moment.now_s - since_s)
        self._seen_s = moment.now_s
        held = {each.job.id: each.allocation for each in moment.running}
        jobs = self._runnable(moment)
        there = held.keys() | {each.job.id for each in moment.waiting}
        self._attained = {id: had for id, had in self._attained.items() if id in there}
        # comparing with held alone is not enough: the shares of a job that ended must go to others
        ids = {job.id for job in jobs}
        if ids == self._packed == held.keys():
            return Decision(held)
        self._packed = ids
        before = Packing({id: each.shares for id, each in held.items()})
        packing = self._packer([PackJob(job.id, self._told[job.model]) for job in jobs], self._servers, before)
        self.packings += 1
        return Decision({id: Placed(each) for id, each in packing.shares.items()})

    def _runnable(self, moment: Moment[Placed]) -> list[SimulatedJob]:
        """Return the first jobs of the order, as many as there are GPUs for."""
        keys: dict[str, tuple[float, bool, float]] = {}
        jobs: list[SimulatedJob] = []
        for each in moment.running:
            keys[each.job.id] = (self._key(each.job, each.left, moment.now_s), False, each.job.submit_s)
            jobs.append(each.job)
        for one in moment.waiting:
            keys[one.job.id] = (self._key(one.job, one.left, moment.now_s), True, one.job.submit_s)
            jobs.append(one.job)
        jobs.sort(key=lambda job: keys[job.id])
        left = self._servers.count * self._servers.gpus
        for number, job in enumerate(jobs):
            left -= job.gpus
            if left < 0:
                return jobs[:number]
        return jobs

    def _key(self, job: SimulatedJob, left: float, now_s: float) -> float:
        return self._order(Standing(job, left, self._rates[job.model], self._attained.get(job.id, 0.0), now_s))
