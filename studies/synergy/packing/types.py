"""The types of packers: equal servers, jobs with their matrices, and the shares of jobs on servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sizing.cpu.sensitivity.matrix import CpuMemory, Matrix


@dataclass(frozen=True, slots=True)
class Servers:
    """`count` servers, each with these GPUs, CPUs and bytes of memory."""

    count: int
    gpus: int
    cpus: float
    memory_bytes: float

    @property
    def proportional(self) -> CpuMemory:
        """A GPU's share of a server."""
        return CpuMemory(self.cpus / self.gpus, self.memory_bytes / self.gpus)


@dataclass(frozen=True, slots=True)
class PackJob:
    """A job with its GPUs and its sensitivity."""

    id: str
    matrix: Matrix

    @property
    def gpus(self) -> int:
        """All its GPUs, on one server or on several."""
        return self.matrix.gpus


@dataclass(frozen=True, slots=True)
class Share:
    """A job's resources on one server, in total (not per GPU)."""

    server: int
    gpus: int
    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Packing:
    """The shares of each job; a job without an entry does not run in this round."""

    shares: Mapping[str, tuple[Share, ...]]

    def point(self, id: str) -> CpuMemory:
        """Return the CPUs and memory per GPU of a job that runs."""
        shares = self.shares[id]
        gpus = sum(share.gpus for share in shares)
        return CpuMemory(sum(share.cpus for share in shares) / gpus, sum(share.memory_bytes for share in shares) / gpus)


class Packer(Protocol):
    """A function that gives jobs their places; `jobs` come by priority, and ask for no more GPUs than there are.

    Pure: the same jobs and servers give the same packing. Raises SizingError if no packing can be found.
    """

    def __call__(self, jobs: Sequence[PackJob], servers: Servers) -> Packing:
        """Return the packing."""
