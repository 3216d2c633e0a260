"""Small worlds for tests of policies: models whose rates are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from studies.simulation.types import Allocation, SimulatedJob


@dataclass
class Written:
    """A rate for each (model, type): that on one GPU, then with each doubling by `scaling`; nothing below `least`."""

    one: Mapping[tuple[str, str], float]
    scaling: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    data_parallel_least: Mapping[str, int] = field(default_factory=dict)
    truth: Mapping[str, float] = field(default_factory=dict)

    def rate(self, model: str, allocation: Allocation) -> float:
        scaling = self.truth.get(model, self.scaling.get(model, 1.8))
        return self._rate(model, allocation.gpu_type, allocation.gpus, self.least.get(model, 1), scaling)

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        least = self.data_parallel_least.get(model, self.least.get(model, 1))
        return self._rate(model, gpu_type, gpus, least, self.scaling.get(model, 1.8))

    def _rate(self, model: str, gpu_type: str, gpus: int, least: int, scaling: float) -> float:
        if gpus < least:
            return 0.0
        return self.one.get((model, gpu_type), 0.0) * scaling ** (gpus.bit_length() - 1)


def job(id: str, model: str = "m", *, at_s: float = 0.0, work: float = 100.0, gpus: int = 1, on: str = "a",
        by_s: float | None = None) -> SimulatedJob:  # fmt: skip
    return SimulatedJob(id, model, at_s, work, gpus, on, by_s)
