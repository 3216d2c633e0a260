"""Each GPU with its share of a server's CPUs and memory, as in schedulers that consider only GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from studies.synergy.packing.free_servers import GPUS_ALONE, FreeServers, refuse_too_many
from studies.synergy.packing.types import Packing, PackJob, Servers, Share


def pack(jobs: Sequence[PackJob], servers: Servers, previous: Packing | None = None) -> Packing:
    """Place all jobs, each on the fullest server that has its GPUs; a job that fits none is split over few servers.

    The largest come first, and among equals the earlier. As every job is placed, none loses its priority by it, and if
    sizes divide each other and a server's GPUs, only jobs larger than a server are split. Jobs of a `previous` round
    stay where they are, whatever this costs the others. Raises SizingError if there are too few GPUs.
    """
    refuse_too_many(jobs, servers)
    free = FreeServers(servers)
    point = servers.proportional
    shares: dict[str, tuple[Share, ...]] = {}
    for job in jobs:
        had = previous.shares.get(job.id, ()) if previous else ()
        if sum(share.gpus for share in had) == job.gpus and all(_has(free, share) for share in had):
            shares[job.id] = tuple(free.take(share.server, share.gpus, point) for share in had)
    for job in sorted((job for job in jobs if job.id not in shares), key=lambda job: -job.gpus):
        if (server := free.fullest(job.gpus, GPUS_ALONE)) is not None:
            shares[job.id] = (free.take(server, job.gpus, point),)
        else:
            shares[job.id] = free.spread(job.gpus, point) or ()
    return Packing({job.id: shares[job.id] for job in jobs})


def _has(free: FreeServers, share: Share) -> bool:
    """Whether a server has the share's GPUs left; a server that does not exist has none."""
    return share.server < free.servers.count and free.gpus[share.server] >= share.gpus
