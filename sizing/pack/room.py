"""What is left of servers while jobs are given their places."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.cpu.matrix import Point
from sizing.errors import SizingError
from sizing.pack.types import PackJob, Servers, Share

# Sums of shares of a server: equal but for the rounding of so many additions.
ROUNDING = 1e-9


class Room:
    """GPUs, CPUs and bytes of memory that are left of each server."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.gpus = [servers.gpus] * servers.count
        self.cpus = [servers.cpus] * servers.count
        self.memory_bytes = [servers.memory_bytes] * servers.count

    def most(self, server: int, point: Point) -> int:
        """How many GPUs a server has left with so many CPUs and so much memory for each."""
        left = self.gpus[server]
        if point.cpus > 0:
            left = min(left, int((self.cpus[server] + ROUNDING * self.servers.cpus) / point.cpus))
        if point.memory_bytes > 0:
            bytes_left = self.memory_bytes[server] + ROUNDING * self.servers.memory_bytes
            left = min(left, int(bytes_left / point.memory_bytes))
        return left

    def take(self, server: int, gpus: int, point: Point) -> Share:
        """Give GPUs of a server away, with CPUs and memory for each of them."""
        share = Share(server, gpus, gpus * point.cpus, gpus * point.memory_bytes)
        self.gpus[server] -= gpus
        self.cpus[server] -= share.cpus
        self.memory_bytes[server] -= share.memory_bytes
        return share

    def change(self, server: int, gpus: int, had: Point, gets: Point) -> None:
        """Give GPUs that have been given away other CPUs and memory for each of them."""
        self.cpus[server] -= gpus * (gets.cpus - had.cpus)
        self.memory_bytes[server] -= gpus * (gets.memory_bytes - had.memory_bytes)

    def spread(self, gpus: int, point: Point) -> tuple[Share, ...] | None:
        """A job's GPUs on as few servers as can be, those with most room first; None where there is not so much."""
        most = [self.most(server, point) for server in range(self.servers.count)]
        if sum(most) < gpus:
            return None
        shares = []
        for server in sorted(range(self.servers.count), key=lambda server: -most[server]):
            here = min(gpus, most[server])
            if here:
                shares.append(self.take(server, here, point))
                gpus -= here
        return tuple(shares)


def exceeds(point: Point, share: Point) -> bool:
    """Whether a point has more CPUs or more memory than a share, beyond rounding."""
    most = 1 + ROUNDING
    return point.cpus > share.cpus * most or point.memory_bytes > share.memory_bytes * most


def refuse_too_many(jobs: Sequence[PackJob], servers: Servers) -> None:
    """Raise SizingError where jobs ask for more GPUs than there are: a round's policy leaves some of them out."""
    asked, there = sum(job.gpus for job in jobs), servers.count * servers.gpus
    if asked > there:
        raise SizingError(f"{len(jobs)} jobs ask for {asked} GPUs and there are {there}: pack fewer at a time")
