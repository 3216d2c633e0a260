"""The rules that every packing must keep, checked by code that packs nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from studies.synergy.packing.types import Packing, PackJob, Servers, Share

# Relative tolerance for rounding in sums of shares, or in a rate computed from them.
_TOLERANCE = 1e-6


def broken(
    packing: Packing, jobs: Sequence[PackJob], servers: Servers, floor: bool = True, order: bool = False
) -> list[str]:
    """Return all faults of a packing, a sentence each; `jobs` come in the order of their priority.

    With `floor` every job must run, and none below its throughput with GPU-proportional CPUs and memory (`FAIR`). With
    `order` the earlier of two jobs with the same matrix must be as fast as the later. Without either, the check covers
    only that servers can give what jobs have, and that jobs can use it as given.
    """
    found = [*_of_jobs(packing, jobs, servers), *_of_servers(packing, servers)]
    if found:  # points of a malformed packing mean nothing
        return found
    if floor:
        found += _of_floors(packing, jobs, servers)
    if order:
        found += _of_equals(packing, jobs)
    return found


def _of_jobs(packing: Packing, jobs: Sequence[PackJob], servers: Servers) -> Iterator[str]:
    by_id = {job.id: job for job in jobs}
    if len(by_id) < len(jobs):
        yield "two jobs have the same name"
    for id, shares in packing.shares.items():
        if id not in by_id:
            yield f"{id} has a place and is none of the jobs"
            continue
        for share in shares:
            if not 0 <= share.server < servers.count:
                yield f"{id} is on server {share.server}, of {servers.count}"
            if share.gpus < 1 or share.gpus != int(share.gpus):
                yield f"{id} has {share.gpus} GPUs of server {share.server}"
            if not all(math.isfinite(each) and each >= 0 for each in (share.cpus, share.memory_bytes)):
                yield f"{id} has {share.cpus} CPUs and {share.memory_bytes} bytes of server {share.server}"
        if len({share.server for share in shares}) < len(shares):
            yield f"{id} has the same server twice"
        asked, given = by_id[id].gpus, sum(share.gpus for share in shares)
        if given != asked:
            yield f"{id} has {given} GPUs and asks for {asked}"
        elif asked == 1 and len(shares) > 1:
            yield f"{id} has one GPU on several servers"
        elif not _alike(shares):
            yield f"{id} has CPUs or memory of its servers that are not proportional to its GPUs there"


def _alike(shares: Sequence[Share]) -> bool:
    """Whether CPUs and memory per GPU are the same on all servers."""
    first = shares[0]
    return all(
        math.isclose(share.cpus * first.gpus, first.cpus * share.gpus, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        and math.isclose(share.memory_bytes * first.gpus, first.memory_bytes * share.gpus, rel_tol=_TOLERANCE)
        for share in shares
    )


def _of_servers(packing: Packing, servers: Servers) -> Iterator[str]:
    on: defaultdict[int, list[Share]] = defaultdict(list)
    for shares in packing.shares.values():
        for share in shares:
            on[share.server].append(share)
    for server, shares_there in sorted(on.items()):
        gpus = sum(share.gpus for share in shares_there)
        cpus = math.fsum(share.cpus for share in shares_there)
        memory_bytes = math.fsum(share.memory_bytes for share in shares_there)
        if gpus > servers.gpus:
            yield f"server {server} gives {gpus} GPUs and has {servers.gpus}"
        if cpus > servers.cpus * (1 + _TOLERANCE):
            yield f"server {server} gives {cpus:g} CPUs and has {servers.cpus:g}"
        if memory_bytes > servers.memory_bytes * (1 + _TOLERANCE):
            yield f"server {server} gives {memory_bytes:g} bytes of memory and has {servers.memory_bytes:g}"


def _of_floors(packing: Packing, jobs: Sequence[PackJob], servers: Servers) -> Iterator[str]:
    for place, job in enumerate(jobs):
        if job.id not in packing.shares:
            later = next((other.id for other in jobs[place + 1 :] if other.id in packing.shares), None)
            yield f"{job.id} is left out" + (f" and {later}, which comes later, is not" if later else "")
            continue
        rate, least = job.matrix.rate(packing.point(job.id)), job.matrix.rate(servers.proportional)
        if rate < least * (1 - _TOLERANCE):
            yield f"{job.id} runs at {rate:g}, below the {least:g} of its GPUs' share"


def _of_equals(packing: Packing, jobs: Sequence[PackJob]) -> Iterator[str]:
    seen: dict[object, tuple[str, float]] = {}
    for job in jobs:
        rate = job.matrix.rate(packing.point(job.id)) if job.id in packing.shares else 0.0
        if job.matrix in seen and rate > seen[job.matrix][1] * (1 + _TOLERANCE):
            yield f"{job.id} runs at {rate:g}, and {seen[job.matrix][0]}, equal and earlier, at {seen[job.matrix][1]:g}"
        seen[job.matrix] = job.id, rate
