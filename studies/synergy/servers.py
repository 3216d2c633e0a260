"""A cluster as servers with GPUs, CPUs and memory: the world of round-based schedulers (Synergy, OSDI 2022).

A job's speed is that of its matrix with the CPUs and memory that it has for each GPU, in the matrix's own unit, which
its "iterations" are counted in. Simplifications: on several servers it is as fast as on one, and it makes no difference
which GPUs of a server it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.cpu.sensitivity.matrix import CpuMemory, Matrices
from studies.simulation.world import CannotGive, SimulatedJob
from studies.synergy.packing.types import Servers, Share

GPU = "gpu"
"""The name of the only GPU type: servers are all equal."""
_CLOSE = 1e-6
"""Relative tolerance on a share: packers work in floating point."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The shares of a job on its servers."""

    shares: tuple[Share, ...]

    @property
    def gpus(self) -> int:
        """GPUs on all servers."""
        return sum(share.gpus for share in self.shares)

    @property
    def point(self) -> CpuMemory:
        """CPUs and memory for each GPU."""
        gpus = self.gpus
        cpus = sum(share.cpus for share in self.shares) / gpus
        return CpuMemory(cpus, sum(share.memory_bytes for share in self.shares) / gpus)

    @property
    def gpus_by_server(self) -> tuple[tuple[int, int], ...]:
        """The places of a job: (server, GPUs) in order."""
        return tuple(sorted((share.server, share.gpus) for share in self.shares))


class ServerWorld:
    """Servers, and the true matrix of each model; a job's `model` is one of their names."""

    def __init__(self, servers: Servers, matrices: Matrices) -> None:
        self._servers, self._matrices = servers, matrices
        self._references = {name: each.matrix.rate(servers.proportional) for name, each in matrices.items()}
        self.capacity: Mapping[str, int] = {GPU: servers.count * servers.gpus}

    def refuse(self, jobs: Sequence[SimulatedJob]) -> None:
        """Raise UsageError for an invalid job.

        Each job must have a matrix for its number of GPUs, run with its proportional share and be no larger than the
        cluster.
        """
        for job in jobs:
            if job.model not in self._matrices:
                raise UsageError(f"job {job.id[:40]!r}: no matrix is called {job.model[:40]!r}: name one of the file")
            gpus = self._matrices[job.model].matrix.gpus
            if job.gpus != gpus:
                raise UsageError(f"job {job.id[:40]!r} has {job.gpus} GPUs and {job.model} {gpus}: give it as many")
            if gpus > self.capacity[GPU]:
                raise UsageError(
                    f"job {job.id[:40]!r} asks for {gpus} GPUs, and there are {self.capacity[GPU]}: take more servers, "
                    f"or leave {job.model} out"
                )
            if self._references[job.model] <= 0:
                raise UsageError(
                    f"{job.model} does not run with a GPU's share of a server (0 in its matrix): "
                    f"take servers with more CPUs or memory, or leave it out"
                )

    def reference_rate(self, job: SimulatedJob) -> float:
        """Return the rate with a GPU's share of a server for each of its GPUs."""
        return self._references.get(job.model, 0.0)

    def rate(self, job: SimulatedJob, allocation: Placed) -> float:
        """Return the rate by its true matrix; shares must be whole, on different servers, and equal per GPU."""
        shares = allocation.shares
        if not shares or any(share.gpus < 1 or not 0 <= share.server < self._servers.count for share in shares):
            raise CannotGive(f"gives {job.id!r} {shares}, which are no shares of {self._servers.count} servers")
        if allocation.gpus != job.gpus or len({share.server for share in shares}) < len(shares):
            raise CannotGive(f"gives {job.id!r} {allocation.gpus_by_server} (server, GPUs), it asked for {job.gpus}")
        point = allocation.point
        for share in shares:
            if not (
                abs(share.cpus - point.cpus * share.gpus) <= _CLOSE * (1 + share.cpus)
                and abs(share.memory_bytes - point.memory_bytes * share.gpus) <= _CLOSE * (1 + share.memory_bytes)
            ):
                raise CannotGive(f"splits {job.id!r} with CPUs or memory that do not go with its GPUs")
        rate = self._matrices[job.model].matrix.rate(point)
        if rate <= 0:
            raise CannotGive(f"gives {job.id!r} {point}, with which {job.model} does not run")
        return rate

    def check(self, allocations: Mapping[str, Placed]) -> None:
        """Raise CannotGive if a server gives more than it has."""
        used: dict[tuple[int, str], float] = defaultdict(float)
        for allocation in allocations.values():
            for share in allocation.shares:
                used[share.server, "GPUs"] += share.gpus
                used[share.server, "CPUs"] += share.cpus
                used[share.server, "bytes"] += share.memory_bytes
        there = {"GPUs": self._servers.gpus, "CPUs": self._servers.cpus, "bytes": self._servers.memory_bytes}
        for (server, what), count in used.items():
            if count > there[what] * (1 + _CLOSE):
                raise CannotGive(f"gives {count:.10g} {what} of server {server}, which has {there[what]:.10g}")

    def moves(self, before: Placed, after: Placed) -> bool:
        """Whether the GPUs differ: CPUs and memory on the same servers are a cgroup's limits, changed while it runs."""
        return before.gpus_by_server != after.gpus_by_server
