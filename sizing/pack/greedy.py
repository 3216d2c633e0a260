"""Synergy's GREEDY: every job with all that it demands, on the first server that has it, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.cpu.matrix import Point
from sizing.pack.room import Room, refuse_too_many
from sizing.pack.types import Packing, PackJob, Servers, Share


def pack(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place jobs in the order of their priority; who finds no place is left out, and later ones are tried.

    That is its known weakness: CPUs or memory run out while GPUs stand idle, and jobs that need much of them wait for
    long. No job demands more for a GPU than a server has. Raises SizingError where there are too few GPUs.
    """
    refuse_too_many(jobs, servers)
    room = Room(servers)
    shares: dict[str, tuple[Share, ...]] = {}
    for job in jobs:
        point = _asked(job, servers)
        first = next((server for server in range(servers.count) if room.most(server, point) >= job.gpus), None)
        if first is not None:
            shares[job.id] = (room.take(first, job.gpus, point),)
        elif job.gpus > 1 and (spread := room.spread(job.gpus, point)):
            shares[job.id] = spread
    return Packing(shares)


def _asked(job: PackJob, servers: Servers) -> Point:
    """What a job demands, as far as a server has it, for each GPU; its share where it is slower with that."""
    demand, share = job.matrix.demand(), servers.proportional
    point = Point(min(demand.cpus, servers.cpus), min(demand.memory_bytes, servers.memory_bytes))
    return point if job.matrix.rate(point) >= job.matrix.rate(share) else share
