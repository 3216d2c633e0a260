"""Synergy's packers as printed: GREEDY gives a job all its demand or no place, TUNE takes back to let all run."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.cpu.sensitivity.matrix import CpuMemory
from studies.synergy.packing.free_servers import GPUS_ALONE, FreeServers, exceeds, refuse_too_many
from studies.synergy.packing.types import Packing, PackJob, Servers, Share


def greedy(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place jobs in the order of their priority; leave out a job that finds no place, and try later ones.

    That is its known weakness: CPUs or memory run out while GPUs stand idle, and jobs that need much of them wait long.
    No job demands more per GPU than a server has. Raises SizingError if there are too few GPUs.
    """
    refuse_too_many(jobs, servers)
    free = FreeServers(servers)
    shares: dict[str, tuple[Share, ...]] = {}
    for job in jobs:
        point = _asked(job, servers)
        first = next((server for server in range(servers.count) if free.most(server, point) >= job.gpus), None)
        if first is not None:
            shares[job.id] = (free.take(first, job.gpus, point),)
        elif job.gpus > 1 and (spread := free.spread(job.gpus, point)):
            shares[job.id] = spread
    return Packing(shares)


def tune(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place every job in the order of priority, none slower than with its GPU-proportional share (Synergy, 4.2).

    A job gets its demand on the fullest server that has it. If no server has it, a job that demands more than
    its share gets its share; if that does not help either, the jobs on the fullest server with its GPUs that have more
    than their share give back, the latest first, until it fits. Our own decision: a job is split only if no server has
    its GPUs, and then gets no more than its share. Raises SizingError if there are too few GPUs.
    """
    refuse_too_many(jobs, servers)
    free, share = FreeServers(servers), servers.proportional
    places: list[list[tuple[int, int]]] = []
    points: list[CpuMemory] = []

    def shrink_others(server: int, gpus: int, point: CpuMemory) -> None:
        for job in reversed(range(len(points))):
            here = dict(places[job]).get(server, 0)
            if here and exceeds(points[job], share) and free.most(server, point) < gpus:
                free.change(server, here, points[job], share)  # a job with more than its share is on one server alone
                points[job] = share

    for job in jobs:
        point = _asked(job, servers)
        server = free.fullest(job.gpus, point)
        if server is None and exceeds(point, share):
            point = share
            server = free.fullest(job.gpus, point)
        if server is None:
            server = free.fullest(job.gpus, GPUS_ALONE)
        parts = [(server, job.gpus)] if server is not None else free.parts(job.gpus, GPUS_ALONE) or []
        for at, gpus in parts:
            shrink_others(at, gpus, point)
            free.take(at, gpus, point)
        places.append(parts)
        points.append(point)
    return Packing(
        {
            job.id: tuple(Share(server, gpus, gpus * point.cpus, gpus * point.memory_bytes) for server, gpus in parts)
            for job, parts, point in zip(jobs, places, points, strict=True)
        }
    )


def _asked(job: PackJob, servers: Servers) -> CpuMemory:
    """Return the CPUs and memory a job demands per GPU, as far as a server has them; its share if that is faster."""
    demand, share = job.matrix.demand(), servers.proportional
    point = CpuMemory(min(demand.cpus, servers.cpus), min(demand.memory_bytes, servers.memory_bytes))
    return point if job.matrix.rate(point) >= job.matrix.rate(share) else share
