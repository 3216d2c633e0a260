"""What the engine speaks of, whatever a cluster is made of: jobs, moments, decisions, and the world that they are in.

`A` is what a job can have: GPUs of a type (sizing.simulate.types), or shares of servers (sizing.simulate.servers).
Classes with a parameter have no slots: frozen ones with slots cannot be made by a name that fixes the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sizing.errors import SizingError


class Held(Protocol):
    """Anything that a job can have, compared by value: so many GPUs of it."""

    @property
    def gpus(self) -> int:
        """All of them."""


A = TypeVar("A", bound=Held)
_Given = TypeVar("_Given", bound=Held, contravariant=True)


class CannotGive(SizingError):
    """Why what a policy gives cannot be given, as words after the policy's name."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job of a trace: `iterations` steps of `model`, asked for with `gpus` GPUs of `gpu_type` at `submit_s`.

    `gpu_type` is "" where the cluster has one type only.
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
    """A job with GPUs: what it has and since when, and the iterations that are left of it now."""

    job: SimulatedJob
    allocation: A
    since_s: float
    left: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job without GPUs; `left` is less than all its iterations where it had some before."""

    job: SimulatedJob
    left: float


@dataclass(frozen=True)
class Moment(Generic[A]):
    """What a policy sees: the time, all jobs that have been submitted and not ended, in order, and GPUs by type.

    `arrived` are ids of jobs that are new since it was last asked, `ended` says whether a job has ended since.
    """

    now_s: float
    running: Sequence[Running[A]]
    waiting: Sequence[Waiting]
    capacity: Mapping[str, int]
    arrived: frozenset[str]
    ended: bool


@dataclass(frozen=True)
class Decision(Generic[A]):
    """Who has what from now on; who is not in it waits. `dropped` cannot meet their deadline, or fit nowhere."""

    allocations: Mapping[str, A]
    dropped: frozenset[str] = frozenset()


class Policy(Protocol[A]):
    """A scheduler. It is asked at arrivals and ends, and every `interval_s` where that is not None (or then alone)."""

    name: str
    interval_s: float | None

    def decide(self, moment: Moment[A]) -> Decision[A]:
        """Never more than there is; a pure function of the moment and of what it decided before."""


class World(Protocol[_Given]):
    """What there is to give, and how fast jobs really are with it."""

    @property
    def capacity(self) -> Mapping[str, int]:
        """GPUs by type, as policies see them."""

    def refuse(self, jobs: Sequence[SimulatedJob]) -> None:
        """Raises UsageError, one line, for a cluster or a job that makes no sense."""

    def reference_rate(self, job: SimulatedJob) -> float:
        """Iterations a second that count as 1 in normalised throughput."""

    def rate(self, job: SimulatedJob, allocation: _Given) -> float:
        """Iterations a second, above 0. Raises CannotGive where no such job can have it, whatever is free."""

    def check(self, allocations: Mapping[str, _Given]) -> None:
        """Raises CannotGive where this is more than there is."""

    def moves(self, before: _Given, after: _Given) -> bool:
        """Whether a job that has the one and gets the other must be restarted for it."""
