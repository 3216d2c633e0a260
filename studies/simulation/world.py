"""The types of the engine for any cluster: jobs, moments, decisions, and the world that they are in.

`A` is the type of a job's allocation: GPUs of a type (studies.simulation.types), or shares of servers
(studies.synergy.servers). Classes with a parameter have no slots: frozen classes with slots cannot be made through an
alias that fixes the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sizing.base.errors import SizingError


class Held(Protocol):
    """Any allocation of a job, compared by value."""

    @property
    def gpus(self) -> int:
        """Number of its GPUs."""


A = TypeVar("A", bound=Held)
_Given = TypeVar("_Given", bound=Held, contravariant=True)


class CannotGive(SizingError):
    """The reason why a policy's allocation is impossible, as words after the policy's name."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job of a trace: `iterations` steps of `model`, asked for with `gpus` GPUs of `gpu_type` at `submit_s`.

    `gpu_type` is "" if the cluster has only one type.
    """

    id: str
    model: str
    submit_s: float
    iterations: float
    gpus: int
    gpu_type: str
    deadline_s: float | None = None


@dataclass(frozen=True)
class Running(Generic[A]):
    """A job with GPUs: its allocation, the time it got it, and the iterations that are left now."""

    job: SimulatedJob
    allocation: A
    since_s: float
    left: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job without GPUs; `left` is less than all its iterations if it had some before."""

    job: SimulatedJob
    left: float


@dataclass(frozen=True)
class Moment(Generic[A]):
    """The view of a policy: the time, all jobs that have been submitted and not ended, in order, and GPUs by type.

    `arrived` are ids of jobs that are new since the last call, `ended` says whether a job has ended since.
    """

    now_s: float
    running: Sequence[Running[A]]
    waiting: Sequence[Waiting]
    capacity: Mapping[str, int]
    arrived: frozenset[str]
    ended: bool


@dataclass(frozen=True)
class Decision(Generic[A]):
    """The allocations from now on; jobs without one wait. `dropped` jobs cannot meet their deadline, or fit nowhere."""

    allocations: Mapping[str, A]
    dropped: frozenset[str] = frozenset()


class Policy(Protocol[A]):
    """A scheduler, asked at arrivals and ends, and every `interval_s` if that is not None (or only then)."""

    name: str
    interval_s: float | None

    def decide(self, moment: Moment[A]) -> Decision[A]:
        """Decide, never giving more than there is; a pure function of the moment and of earlier decisions."""


class World(Protocol[_Given]):
    """The resources of a cluster, and the true speeds of jobs with them."""

    @property
    def capacity(self) -> Mapping[str, int]:
        """GPUs by type, as policies see them."""

    def refuse(self, jobs: Sequence[SimulatedJob]) -> None:
        """Raise UsageError, one line, for an invalid cluster or job."""

    def reference_rate(self, job: SimulatedJob) -> float:
        """Return the iterations a second that count as 1 in normalised throughput."""

    def rate(self, job: SimulatedJob, allocation: _Given) -> float:
        """Return the iterations a second, above 0. Raises CannotGive if such a job can never have it."""

    def check(self, allocations: Mapping[str, _Given]) -> None:
        """Raise CannotGive if this is more than there is."""

    def moves(self, before: _Given, after: _Given) -> bool:
        """Whether a job must be restarted to change from the one to the other."""
