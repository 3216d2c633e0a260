"""What is left of servers while jobs are given their places."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.cpu.matrix import Point
from sizing.errors import SizingError
from sizing.pack.types import PackJob, Servers, Share

# Sums of shares of a server: equal but for the rounding of so many additions.
ROUNDING = 1e-9

GPUS_ALONE = Point(0.0, 0.0)
"""For each GPU neither CPUs nor memory: a server's GPUs are all that is asked for."""


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
        """Give a job's GPUs away as `parts` has them; None where there is not so much room."""
        parts = self.parts(gpus, point)
        return None if parts is None else tuple(self.take(server, here, point) for server, here in parts)

    def parts(self, gpus: int, point: Point) -> list[tuple[int, int]] | None:
        """Servers, as few as can be and those with most room first, and the GPUs of each; None where room is short."""
        most = [self.most(server, point) for server in range(self.servers.count)]
        if sum(most) < gpus:
            return None
        found = []
        for server in sorted(range(self.servers.count), key=lambda server: -most[server]):
            if here := min(gpus, most[server]):
                found.append((server, here))
                gpus -= here
        return found

    def fullest(self, gpus: int, point: Point) -> int | None:
        """The server with the fewest GPUs left of those that have so many with that for each; None where none has."""
        fits = [server for server in range(self.servers.count) if self.most(server, point) >= gpus]
        return min(fits, key=self.gpus.__getitem__, default=None)


def exceeds(point: Point, share: Point) -> bool:
    """Tell whether a point has more CPUs or more memory than a share, beyond rounding."""
    most = 1 + ROUNDING
    return point.cpus > share.cpus * most or point.memory_bytes > share.memory_bytes * most


def refuse_too_many(jobs: Sequence[PackJob], servers: Servers) -> None:
    """Raise SizingError where jobs ask for more GPUs than there are: a round's policy leaves some of them out."""
    asked, there = sum(job.gpus for job in jobs), servers.count * servers.gpus
    if asked > there:
        raise SizingError(f"{len(jobs)} jobs ask for {asked} GPUs and there are {there}: pack fewer at a time")
