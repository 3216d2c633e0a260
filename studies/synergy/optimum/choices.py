"""Equal jobs with the options that any of them can get: the units that the programs of OPT count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.cpu.sensitivity.matrix import CpuMemory
from studies.synergy.packing.free_servers import ROUNDING
from studies.synergy.packing.job_options import Option, menu
from studies.synergy.packing.throughput import base
from studies.synergy.packing.types import PackJob, Servers


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs with the same matrix, in the order of their priority; `least` is the option that each can always have.

    `below` are cells that are slower than the proportional share: no job ends up with one, but the relaxed program
    mixes them in.
    """

    jobs: tuple[PackJob, ...]
    options: tuple[Option, ...]
    least: Option
    below: tuple[Option, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of each of the jobs."""
        return self.jobs[0].gpus


def kinds(jobs: Sequence[PackJob], servers: Servers) -> tuple[Kind, ...]:
    """Return all jobs by kind: programs count equal jobs, which loses nothing and makes the programs small."""
    alike: dict[object, list[PackJob]] = {}
    for job in jobs:
        alike.setdefault(job.matrix, []).append(job)
    return tuple(_kind(tuple(group), servers) for group in alike.values())


def _kind(jobs: tuple[PackJob, ...], servers: Servers) -> Kind:
    found = menu(jobs[0].matrix, servers.proportional)
    most = servers.gpus * (1 + ROUNDING)  # the capacity of one server, in its GPUs' shares
    options = tuple(option for option in found.options if option.cpus <= most and option.memory <= most)
    return Kind(jobs, options, found.options[found.base], _below(jobs[0], servers))


def _below(job: PackJob, servers: Servers) -> tuple[Option, ...]:
    """Return the cells in which a job runs, but slower than with its share."""
    matrix, share, unit = job.matrix, servers.proportional, base(job, servers)
    return tuple(
        Option(cpus / share.cpus, memory_bytes / share.memory_bytes, rate / unit, CpuMemory(cpus, memory_bytes))
        for cpus, rates in zip(matrix.cpus, matrix.rates, strict=True)
        for memory_bytes, rate in zip(matrix.memory_bytes, rates, strict=True)
        if 0 < rate < matrix.rate(share)
    )
