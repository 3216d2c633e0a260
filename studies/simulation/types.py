"""The types of schedulers of cells: GPUs of one type and pipeline stages, on clusters of several types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from studies.simulation import world
from studies.simulation.world import SimulatedJob as SimulatedJob
from studies.simulation.world import Waiting as Waiting


@dataclass(frozen=True, slots=True, order=True)
class Allocation:
    """A job's GPUs, all of one type, and its pipeline stages (the cell that it runs as)."""

    gpu_type: str
    gpus: int
    stages: int = 1


class Speeds(Protocol):
    """Speeds of models, in iterations a second; 0 if a model does not fit."""

    def rate(self, model: str, allocation: Allocation) -> float:
        """Return the rate with the best plan inside the cell."""

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        """Return the rate with data parallelism alone: the only profiles of schedulers without cells."""


Running: TypeAlias = world.Running[Allocation]
Moment: TypeAlias = world.Moment[Allocation]
Decision: TypeAlias = world.Decision[Allocation]
Policy: TypeAlias = world.Policy[Allocation]
