"""Each GPU with its share of a server's CPUs and memory: what schedulers do that look at GPUs alone."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.pack.room import Room, refuse_too_many
from sizing.pack.types import Packing, PackJob, Servers, Share


def pack(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place all jobs, on the fullest server that has their GPUs; one that fits none is split over few servers.

    The largest come first, and among equals the earlier. As every job is placed none loses its priority by it, and
    where sizes divide each other and a server's GPUs, only jobs larger than a server are split. Raises SizingError
    where there are too few GPUs.
    """
    refuse_too_many(jobs, servers)
    room = Room(servers)
    point = servers.proportional
    shares: dict[str, tuple[Share, ...]] = {}
    for job in sorted(jobs, key=lambda job: -job.gpus):
        fits = [server for server, left in enumerate(room.gpus) if left >= job.gpus]
        if fits:
            shares[job.id] = (room.take(min(fits, key=room.gpus.__getitem__), job.gpus, point),)
        else:
            shares[job.id] = room.spread(job.gpus, point) or ()
    return Packing({job.id: shares[job.id] for job in jobs})
