"""What schedulers of cells speak of: GPUs of one type and pipeline stages, on clusters of several types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from sizing.simulate import world
from sizing.simulate.world import SimulatedJob as SimulatedJob
from sizing.simulate.world import Waiting as Waiting


@dataclass(frozen=True, slots=True, order=True)
class Allocation:
    """GPUs of one type that a job has, and its pipeline stages (the cell that it runs as)."""

    gpu_type: str
    gpus: int
    stages: int = 1


class Speeds(Protocol):
    """How fast a model is, in iterations a second; 0 where it does not fit."""

    def rate(self, model: str, allocation: Allocation) -> float:
        """With the best plan inside the cell."""

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        """With data parallelism alone: all that schedulers without cells have profiled."""


Running: TypeAlias = world.Running[Allocation]
Moment: TypeAlias = world.Moment[Allocation]
Decision: TypeAlias = world.Decision[Allocation]
Policy: TypeAlias = world.Policy[Allocation]
