"""A cluster as a pool of GPUs for each type (Crius, section 8): the world of schedulers of cells.

The nodes of GPUs affect only the rates, never whether an allocation is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sizing.base.errors import UsageError
from studies.simulation.reference import power_of_two, reference_rate
from studies.simulation.types import Allocation, SimulatedJob, Speeds
from studies.simulation.world import CannotGive


class Pools:
    """GPUs by type, with the true speeds of models on them. Each rate is computed once."""

    def __init__(self, capacity: Mapping[str, int], speeds: Speeds) -> None:
        self.capacity: Mapping[str, int] = dict(capacity)
        self._speeds = speeds
        self._references: dict[tuple[str, str, int], float] = {}
        self._rates: dict[tuple[str, Allocation], float] = {}

    def refuse(self, jobs: Sequence[SimulatedJob]) -> None:
        """Raise UsageError for jobs whose GPUs are no power of two, and for negative capacities."""
        for job in jobs:
            if not power_of_two(job.gpus):
                below = 1 << max(job.gpus, 1).bit_length() - 1
                raise UsageError(
                    f"job {job.id!r} asks for {job.gpus} GPUs: cells have powers of two, take {below} or {2 * below}"
                )
        if min(self.capacity.values(), default=0) < 0:
            raise UsageError("a cluster has no fewer than 0 GPUs of a type")

    def reference_rate(self, job: SimulatedJob) -> float:
        """Return the rate with the job's request."""
        key = (job.model, job.gpu_type, job.gpus)
        if key not in self._references:
            self._references[key] = reference_rate(self._speeds, job, tuple(self.capacity))
        return self._references[key]

    def rate(self, job: SimulatedJob, allocation: Allocation) -> float:
        """Return the rate of the cell; raise CannotGive if it is invalid."""
        if not power_of_two(allocation.gpus):
            raise CannotGive(f"gives {allocation.gpus} GPUs to {job.id!r}: a cell has 1, 2, 4, 8... GPUs")
        if not 1 <= allocation.stages <= allocation.gpus:
            raise CannotGive(f"gives {job.id!r} {allocation.stages} stages on {allocation.gpus} GPUs")
        if allocation.gpu_type not in self.capacity:
            raise CannotGive(f"gives {job.id!r} GPUs of type {allocation.gpu_type!r}, which the cluster has not")
        key = (job.model, allocation)
        if key not in self._rates:
            self._rates[key] = self._speeds.rate(job.model, allocation)
        if self._rates[key] <= 0:
            raise CannotGive(f"gives {job.id!r} {allocation}, where {job.model} does not fit")
        return self._rates[key]

    def check(self, allocations: Mapping[str, Allocation]) -> None:
        """Raise CannotGive for more GPUs of a type than there are."""
        used: Counter[str] = Counter()
        for allocation in allocations.values():
            used[allocation.gpu_type] += allocation.gpus
        for gpu_type, count in used.items():
            if count > self.capacity[gpu_type]:
                there = self.capacity[gpu_type]
                raise CannotGive(f"gives {count} GPUs of type {gpu_type!r}, of which there are {there}")

    def moves(self, before: Allocation, after: Allocation) -> bool:
        """Return True: another cell always has other ranks."""
        return True
