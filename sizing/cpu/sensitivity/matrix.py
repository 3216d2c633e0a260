"""The sensitivity matrix of a job: its speed by number of CPUs and size of memory."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from sizing.base.estimate import Origin

SATURATED = 0.98
"""Share of the best throughput: a job demands the least CPUs and memory that reach it (Synergy, section 3)."""


@dataclass(frozen=True, slots=True, order=True)
class CpuMemory:
    """CPUs and bytes of memory for each GPU of a job; a job without GPUs counts as one with one."""

    cpus: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """Throughput by CPUs (rows) and memory (columns), both for each GPU and ascending.

    `rates[i][j]` is with `cpus[i]` and `memory_bytes[j]`, in samples/s or relative to any one point, for the whole job;
    0 means that it does not run, or that there is no such server. `origins[i]` is the origin of a row's rate with all
    the memory; columns with less are computed unless the file has them all. `searched` is the number of CPUs that a
    search found sufficient (`sizing.cpu.sensitivity.search`), None if no rate is uncertain. Raises ValueError for wrong
    shapes or orders.
    """

    gpus: int
    cpus: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    rates: tuple[tuple[float, ...], ...]
    origins: tuple[Origin, ...] = ()
    searched: float | None = None

    def __post_init__(self) -> None:
        if self.gpus < 1 or not self.cpus or not self.memory_bytes:
            raise ValueError("a matrix has at least one GPU, one row and one column")
        if len(self.rates) != len(self.cpus) or {len(row) for row in self.rates} != {len(self.memory_bytes)}:
            raise ValueError("a matrix has a rate for each of its CPUs and memory")
        for axis in (self.cpus, self.memory_bytes):
            if any(a >= b for a, b in itertools.pairwise(axis)) or axis[0] <= 0:
                raise ValueError("CPUs and memory ascend, and are more than 0")
        if self.searched is not None and self.searched not in self.cpus:
            raise ValueError("the CPUs that a search found are among those of the matrix")

    def rate(self, at: CpuMemory) -> float:
        """Return the rate of the cell at or next below this point; below the first row or column it is 0."""
        row = bisect_right(self.cpus, at.cpus * (1 + 1e-9)) - 1
        column = bisect_right(self.memory_bytes, at.memory_bytes * (1 + 1e-9)) - 1
        return self.rates[row][column] if row >= 0 and column >= 0 else 0.0

    @property
    def best(self) -> float:
        """The greatest rate."""
        return max(max(row) for row in self.rates)

    def demand(self, share: float = SATURATED) -> CpuMemory:
        """Return the least CPUs, and with these the least memory, that reach `share` of the best rate.

        If CPUs were searched, return these, and the least memory that reaches `share` of the best with them: for
        measured rates the search decides, because it does not take noise for a gain.
        """
        if self.searched is not None:
            row = self.rates[self.cpus.index(self.searched)]
            least = next(j for j, rate in enumerate(row) if rate >= share * max(row))
            return CpuMemory(self.searched, self.memory_bytes[least])
        for i, cpus in enumerate(self.cpus):
            for j, memory_bytes in enumerate(self.memory_bytes):
                if self.rates[i][j] >= share * self.best:
                    return CpuMemory(cpus, memory_bytes)
        raise AssertionError("the best rate is one of the matrix's")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A matrix of a file, by name, with the job's class (image, language, speech...) and seconds per iteration."""

    name: str
    kind: str
    matrix: Matrix
    iteration_s: float


Matrices = Mapping[str, Recorded]
