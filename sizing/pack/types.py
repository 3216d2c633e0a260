"""What packers speak of: servers that are all alike, jobs with their matrices, and who has how much of which server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sizing.cpu.matrix import Matrix, Point


@dataclass(frozen=True, slots=True)
class Servers:
    """`count` servers, each with so many GPUs, CPUs and bytes of memory."""

    count: int
    gpus: int
    cpus: float
    memory_bytes: float

    @property
    def proportional(self) -> Point:
        """What a GPU's share of a server is."""
        return Point(self.cpus / self.gpus, self.memory_bytes / self.gpus)


@dataclass(frozen=True, slots=True)
class PackJob:
    """A job with its GPUs and its sensitivity."""

    id: str
    matrix: Matrix

    @property
    def gpus(self) -> int:
        """All of them, on one server or on several."""
        return self.matrix.gpus


@dataclass(frozen=True, slots=True)
class Share:
    """What a job has of one server, all told (not for each GPU)."""

    server: int
    gpus: int
    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Packing:
    """What each job has; who is not in it runs not in this round."""

    shares: Mapping[str, tuple[Share, ...]]

    def point(self, id: str) -> Point:
        """CPUs and memory for each GPU of a job that runs."""
        shares = self.shares[id]
        gpus = sum(share.gpus for share in shares)
        return Point(sum(share.cpus for share in shares) / gpus, sum(share.memory_bytes for share in shares) / gpus)


class Packer(Protocol):
    """Gives jobs their places; `jobs` come in the order of their priority, and ask for no more GPUs than there are.

    Pure: the same jobs and servers give the same packing. Raises SizingError where no packing can be found.
    """

    def __call__(self, jobs: Sequence[PackJob], servers: Servers) -> Packing:
        """Who has what."""
