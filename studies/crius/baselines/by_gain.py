"""Baselines whose queue is in the order of `crius-patient`: a scheduler's advantage is then not due to its order."""

from __future__ import annotations

from dataclasses import replace

from studies.crius.baselines.profiled import Profiled
from studies.simulation.reference import powers
from studies.simulation.types import Decision, Moment, Policy, SimulatedJob


class ByGain:
    """A policy that sees waiting jobs in the order of the throughput per GPU they add by its own profiles.

    Jobs that have waited for `patience_s` come first, the oldest at the front.
    """

    def __init__(self, policy: Policy, known: Profiled, patience_s: float) -> None:
        self.name = f"{policy.name}-by-gain"
        self.interval_s = policy.interval_s
        self._policy, self._known, self._patience_s = policy, known, patience_s
        self._since_s: dict[str, float] = {}

    def decide(self, moment: Moment) -> Decision:
        """Decide as the policy does, on the queue in another order."""
        waiting = [each.job.id for each in moment.waiting]
        self._since_s = {id: self._since_s.get(id, moment.now_s) for id in waiting}

        def turn(job: SimulatedJob) -> tuple[float, ...]:
            impatient = moment.now_s >= self._since_s[job.id] + self._patience_s
            return (0.0, job.submit_s) if impatient else (1.0, -self._gain(job), job.submit_s)

        ordered = tuple(sorted(moment.waiting, key=lambda each: turn(each.job)))
        return self._policy.decide(replace(moment, waiting=ordered))

    def _gain(self, job: SimulatedJob) -> float:
        """Return the most that one of its GPUs adds, with up to the requested count, relative to its requested rate."""
        asked = self._known.asked(job)
        rates = ((self._known.rate(job, job.gpu_type, gpus), gpus) for gpus in powers(job.gpus))
        return max((rate / asked / gpus for rate, gpus in rates), default=0.0) if asked > 0 else 0.0
