"""The cells that a job may have (Crius, section 6.1: initialising cells), and its value in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from studies.simulation.reference import fastest, reference_rate
from studies.simulation.types import Allocation, SimulatedJob, Speeds

Objective = Literal["normalised", "raw"]
"""The measure of throughput: each job's rate relative to that of its request, or plain iterations a second (paper)."""


@dataclass(frozen=True, slots=True)
class Option:
    """A cell of a job: its iterations a second there, and its share of the cluster's throughput."""

    allocation: Allocation
    rate: float
    value: float


class Other(NamedTuple):
    """A cell that a job could have instead of its present one; `need` are the additional GPUs by type."""

    option: Option
    allocation: Allocation
    rate: float
    value: float
    grows: bool
    need: tuple[int, ...]


class Options:
    """The options of jobs, computed once for all jobs with the same request.

    A job that asks for N GPUs has cells of N/2, N and 2N GPUs of every type, with 1, 2, 4... stages up to their number.
    The number of stages costs no GPUs, so only the fastest one is an option. Without `adaptive` a job only gets the
    number of GPUs that it asked for; without `heterogeneous` only the type.
    """

    def __init__(
        self,
        speeds: Speeds,
        *,
        objective: Objective = "normalised",
        adaptive: bool = True,
        heterogeneous: bool = True,
    ) -> None:
        self._speeds, self._objective = speeds, objective
        self._adaptive, self._heterogeneous = adaptive, heterogeneous
        self._of: dict[tuple[object, ...], tuple[Option, ...]] = {}
        self._others: dict[tuple[object, ...], tuple[Other, ...]] = {}
        self._shares: dict[tuple[object, ...], float] = {}
        self._alone: dict[tuple[object, ...], Option] = {}
        self._units: dict[tuple[object, ...], float] = {}

    def of(self, job: SimulatedJob, capacity: Mapping[str, int]) -> tuple[Option, ...]:
        """Return all options of a job that fit in memory and in the empty cluster, by type and number."""
        key = (job.model, job.gpus, job.gpu_type, *capacity.items())
        if key not in self._of:
            types = list(capacity) if self._heterogeneous else [each for each in capacity if each == job.gpu_type]
            counts = [job.gpus // 2, job.gpus, job.gpus * 2] if self._adaptive else [job.gpus]
            unit = self._unit(job, capacity)
            found = []
            for gpu_type in types:
                for gpus in counts:
                    if not 1 <= gpus <= capacity[gpu_type]:
                        continue
                    allocation, rate = fastest(self._speeds, job.model, gpu_type, gpus)
                    if rate > 0:
                        found.append(Option(allocation, rate, rate / unit))
            self._of[key] = tuple(found)
        return self._of[key]

    def others(self, job: SimulatedJob, held: Allocation, capacity: Mapping[str, int]) -> tuple[Other, ...]:
        """Return all options except the present one, `held`; GPUs by type are in the order of `capacity`."""
        key = (job.model, job.gpus, job.gpu_type, held, *capacity.items())
        if key not in self._others:
            found = []
            for option in self.of(job, capacity):
                has = option.allocation
                if has != held:
                    need = tuple(
                        has.gpus * (each == has.gpu_type) - held.gpus * (each == held.gpu_type) for each in capacity
                    )
                    found.append(Other(option, has, option.rate, option.value, has.gpus > held.gpus, need))
            self._others[key] = tuple(found)
        return self._others[key]

    def share(self, job: SimulatedJob, capacity: Mapping[str, int]) -> float:
        """Return the most that one GPU adds to the throughput with a job; the job must have an option."""
        key = (job.model, job.gpus, job.gpu_type, *capacity.items())
        if key not in self._shares:
            self._shares[key] = max(each.value / each.allocation.gpus for each in self.of(job, capacity))
        return self._shares[key]

    def at(self, job: SimulatedJob, allocation: Allocation, capacity: Mapping[str, int]) -> Option:
        """Return a job's rate and value in any allocation, even one that is not among its options."""
        key = (job.model, job.gpus, job.gpu_type, allocation)
        if key not in self._alone:
            rate = self._speeds.rate(job.model, allocation)
            self._alone[key] = Option(allocation, rate, rate / self._unit(job, capacity))
        return self._alone[key]

    def _unit(self, job: SimulatedJob, capacity: Mapping[str, int]) -> float:
        """Return the rate that has the value 1."""
        if self._objective == "raw":
            return 1.0
        key = (job.model, job.gpus, job.gpu_type)
        if key not in self._units:
            self._units[key] = reference_rate(self._speeds, job, tuple(capacity)) or 1.0
        return self._units[key]
