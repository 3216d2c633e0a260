"""A cluster as servers with GPUs, CPUs and memory: the world of round-based schedulers (Synergy, OSDI 2022).

A job is as fast as its matrix says with the CPUs and memory that it has for each GPU, in the matrix's own unit: that is
what its "iterations" are counted in. What is simplified: on several
servers it is as fast as on one, and which GPUs of a server it has makes no difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sizing.cpu.matrix import Matrices, Point
from sizing.errors import UsageError
from sizing.pack.types import Servers, Share
from sizing.simulate.world import CannotGive, SimulatedJob

GPU = "gpu"
"""Servers are all alike: their GPUs are of one type."""
_CLOSE = 1e-6
"""Of a share: packers work in floating point."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a job has of each of its servers."""

    shares: tuple[Share, ...]

    @property
    def gpus(self) -> int:
        """On all servers."""
        return sum(share.gpus for share in self.shares)

    @property
    def point(self) -> Point:
        """CPUs and memory for each GPU."""
        gpus = self.gpus
        cpus = sum(share.cpus for share in self.shares) / gpus
        return Point(cpus, sum(share.memory_bytes for share in self.shares) / gpus)

    @property
    def gpus_by_server(self) -> tuple[tuple[int, int], ...]:
        """Where it stands: (server, GPUs) in order."""
        return tuple(sorted((share.server, share.gpus) for share in self.shares))


class ServerWorld:
    """Servers, and the true matrix of each model: `model` of a job is a name of them."""

    def __init__(self, servers: Servers, matrices: Matrices) -> None:
        self._servers, self._matrices = servers, matrices
        self._references = {name: each.matrix.rate(servers.proportional) for name, each in matrices.items()}
        self.capacity: Mapping[str, int] = {GPU: servers.count * servers.gpus}

    def refuse(self, jobs: Sequence[SimulatedJob]) -> None:
        """Each job is one of the matrices', runs with its proportional share and is no larger than the cluster."""
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
        """With a GPU's share of a server for each of its GPUs."""
        return self._references.get(job.model, 0.0)

    def rate(self, job: SimulatedJob, allocation: Placed) -> float:
        """By its true matrix; shares must be whole, on different servers, and alike for each GPU."""
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
        """No server gives more than it has."""
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
        """Other GPUs are; other CPUs or memory of the same servers are the limits of a cgroup, changed as it runs."""
        return before.gpus_by_server != after.gpus_by_server
