"""The GPUs, CPUs and memory left on servers while jobs are placed."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.base.errors import SizingError
from sizing.cpu.sensitivity.matrix import CpuMemory
from studies.synergy.packing.types import PackJob, Servers, Share

# Relative tolerance for rounding in sums of shares of a server.
ROUNDING = 1e-9

GPUS_ALONE = CpuMemory(0.0, 0.0)
"""Neither CPUs nor memory per GPU: only a server's GPUs are requested."""


class FreeServers:
    """GPUs, CPUs and bytes of memory left on each server."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.gpus = [servers.gpus] * servers.count
        self.cpus = [servers.cpus] * servers.count
        self.memory_bytes = [servers.memory_bytes] * servers.count

    def most(self, server: int, point: CpuMemory) -> int:
        """Return the number of GPUs that a server has left with CPUs and memory of `point` for each."""
        left = self.gpus[server]
        if point.cpus > 0:
            left = min(left, int((self.cpus[server] + ROUNDING * self.servers.cpus) / point.cpus))
        if point.memory_bytes > 0:
            bytes_left = self.memory_bytes[server] + ROUNDING * self.servers.memory_bytes
            left = min(left, int(bytes_left / point.memory_bytes))
        return left

    def take(self, server: int, gpus: int, point: CpuMemory) -> Share:
        """Give GPUs of a server away, with CPUs and memory for each of them."""
        share = Share(server, gpus, gpus * point.cpus, gpus * point.memory_bytes)
        self.gpus[server] -= gpus
        self.cpus[server] -= share.cpus
        self.memory_bytes[server] -= share.memory_bytes
        return share

    def change(self, server: int, gpus: int, had: CpuMemory, gets: CpuMemory) -> None:
        """Change the CPUs and memory of each of some GPUs that were given away."""
        self.cpus[server] -= gpus * (gets.cpus - had.cpus)
        self.memory_bytes[server] -= gpus * (gets.memory_bytes - had.memory_bytes)

    def spread(self, gpus: int, point: CpuMemory) -> tuple[Share, ...] | None:
        """Give a job's GPUs away as `parts` says; None if they do not fit."""
        parts = self.parts(gpus, point)
        return None if parts is None else tuple(self.take(server, here, point) for server, here in parts)

    def parts(self, gpus: int, point: CpuMemory) -> list[tuple[int, int]] | None:
        """Return the fewest servers possible, those with most free GPUs first, and GPUs of each; None if too few."""
        most = [self.most(server, point) for server in range(self.servers.count)]
        if sum(most) < gpus:
            return None
        found = []
        for server in sorted(range(self.servers.count), key=lambda server: -most[server]):
            if here := min(gpus, most[server]):
                found.append((server, here))
                gpus -= here
        return found

    def fullest(self, gpus: int, point: CpuMemory) -> int | None:
        """Return the server with the fewest GPUs left of those that have `gpus` GPUs; None if none has."""
        fits = [server for server in range(self.servers.count) if self.most(server, point) >= gpus]
        return min(fits, key=self.gpus.__getitem__, default=None)


def exceeds(point: CpuMemory, share: CpuMemory) -> bool:
    """Whether a point has more CPUs or more memory than a share, beyond rounding."""
    most = 1 + ROUNDING
    return point.cpus > share.cpus * most or point.memory_bytes > share.memory_bytes * most


def refuse_too_many(jobs: Sequence[PackJob], servers: Servers) -> None:
    """Raise SizingError if jobs ask for more GPUs than there are: a round's policy must leave some jobs out."""
    asked, there = sum(job.gpus for job in jobs), servers.count * servers.gpus
    if asked > there:
        raise SizingError(f"{len(jobs)} jobs ask for {asked} GPUs and there are {there}: pack fewer at a time")
