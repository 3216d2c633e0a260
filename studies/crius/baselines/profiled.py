"""The knowledge of a scheduler without cells about jobs, and the real runs of its jobs.

As in Crius's evaluation (section 8.1) such schedulers have profiles of data parallelism, and their jobs run with
adaptive parallelism: on any GPUs that a job is given, it takes the best plan.
"""

from __future__ import annotations

from studies.simulation.reference import fastest, powers
from studies.simulation.types import Allocation, SimulatedJob, Speeds

MOST_GPUS = 64
"""Most GPUs of a job: Crius's jobs have up to 64."""


class Profiled:
    """Profiles of data parallelism (`told`), and the true speeds (`true`), which a job's start shows.

    If data parallelism does not fit a GPU, a scheduler knows one point: the allocation that the user asks for, which
    runs. It knows nothing of any other then, and does not use it.
    """

    def __init__(self, told: Speeds, true: Speeds) -> None:
        self._told = told
        self._true = true
        self._cells: dict[tuple[str, str, int], Allocation | None] = {}
        self._rates: dict[tuple[str, str, int], float] = {}

    def cell(self, job: SimulatedJob, gpu_type: str, gpus: int) -> Allocation | None:
        """Return the job's best allocation there, as adaptive parallelism finds it; None if it is out of memory."""
        key = (job.model, gpu_type, gpus)
        if key not in self._cells:
            allocation, rate = fastest(self._true, *key)
            self._cells[key] = allocation if rate > 0 else None
        return self._cells[key]

    def runs_s(self, job: SimulatedJob, allocation: Allocation, left: float) -> float:
        """Return the real time of the iterations that are left there."""
        return left / self._true.rate(job.model, allocation)

    def rate(self, job: SimulatedJob, gpu_type: str, gpus: int) -> float:
        """Return the iterations a second by the profile, 0 if unknown."""
        found = self._told.data_parallel_rate(job.model, gpu_type, gpus)
        return found if found > 0 or (gpu_type, gpus) != (job.gpu_type, job.gpus) else self.asked(job)

    def asked(self, job: SimulatedJob) -> float:
        """Return the iterations a second with the user's request."""
        key = (job.model, job.gpu_type, job.gpus)
        found = self._told.data_parallel_rate(*key)
        if found <= 0 and key not in self._rates:
            self._rates[key] = fastest(self._told, *key)[1]
        return found if found > 0 else self._rates[key]

    def least(self, job: SimulatedJob, gpu_type: str, most: int) -> int:
        """Return the fewest GPUs of a type on which it is known to run, 0 if there are none up to `most`."""
        return next((gpus for gpus in powers(min(most, MOST_GPUS)) if self.rate(job, gpu_type, gpus) > 0), 0)
