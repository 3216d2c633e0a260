"""What schedulers and the simulated cluster speak of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job of a trace: `iterations` steps of `model`, asked for with `gpus` GPUs of `gpu_type` at `submit_s`."""

    id: str
    model: str
    submit_s: float
    iterations: float
    gpus: int
    gpu_type: str
    deadline_s: float | None = None


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


@dataclass(frozen=True, slots=True)
class Running:
    """A job with GPUs: what it has and since when, and the iterations that are left of it now."""

    job: SimulatedJob
    allocation: Allocation
    since_s: float
    left: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job without GPUs; `left` is less than all its iterations where it had some before."""

    job: SimulatedJob
    left: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What a policy sees: the time, all jobs that have been submitted and not ended, in order, and GPUs by type.

    `arrived` are ids of jobs that are new since it was last asked, `ended` says whether a job has ended since.
    """

    now_s: float
    running: Sequence[Running]
    waiting: Sequence[Waiting]
    capacity: Mapping[str, int]
    arrived: frozenset[str]
    ended: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """Who has what from now on; who is not in it waits. `dropped` cannot meet their deadline, or fit nowhere."""

    allocations: Mapping[str, Allocation]
    dropped: frozenset[str] = frozenset()


class Policy(Protocol):
    """A scheduler. It is asked at arrivals and ends, and every `interval_s` where that is not None."""

    name: str
    interval_s: float | None

    def decide(self, moment: Moment) -> Decision:
        """Never more GPUs of a type than there are; a pure function of the moment and of what it decided before."""
