"""Throughput relative to that with a GPU's share of a server: the objective of packers, and the floor for each job."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.base.errors import SizingError
from studies.synergy.packing.types import Packing, PackJob, Servers


def base(job: PackJob, servers: Servers) -> float:
    """Return the rate that counts 1: with the proportional share, or the best of a job that does not run with that."""
    return job.matrix.rate(servers.proportional) or job.matrix.best or 1.0


def relative(packing: Packing, job: PackJob, servers: Servers) -> float:
    """Return a job's throughput in a packing over its proportional one; 0 if it is left out."""
    return job.matrix.rate(packing.point(job.id)) / base(job, servers) if job.id in packing.shares else 0.0


def mean(packing: Packing, jobs: Sequence[PackJob], servers: Servers) -> float:
    """Return the mean relative throughput per GPU of the jobs: larger jobs count more, those left out count 0."""
    return sum(job.gpus * relative(packing, job, servers) for job in jobs) / sum(job.gpus for job in jobs)


def least(packing: Packing, jobs: Sequence[PackJob], servers: Servers) -> float:
    """Return the relative throughput of the job that fares worst; 0 if one is left out."""
    return min(relative(packing, job, servers) for job in jobs)


def refuse_stopped(job: PackJob, servers: Servers) -> None:
    """Raise SizingError for a job that does not run with its proportional share, which then is no yardstick."""
    if not job.matrix.rate(servers.proportional):
        share = servers.proportional
        raise SizingError(
            f"job {job.id} does not run with its share of a server ({share.cpus:g} CPUs and "
            f"{share.memory_bytes / 1e9:g} GB a GPU): leave it out, or take other servers"
        )
