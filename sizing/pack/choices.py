"""What a job can be given: the cells of its matrix that are worth their CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.cpu.matrix import Point
from sizing.pack.room import ROUNDING
from sizing.pack.types import PackJob, Servers
from sizing.pack.worth import base


@dataclass(frozen=True, slots=True)
class Option:
    """CPUs and memory for each GPU, and the throughput with them over the proportional one."""

    point: Point
    worth: float


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that are alike, in the order of their priority; any of them may have any of the options.

    `below` are options that are slower than the proportional share: no job is left with one, the relaxed program mixes
    them in. A job that does not even run with its share may be left with that, as nothing of what others have is its.
    """

    jobs: tuple[PackJob, ...]
    options: tuple[Option, ...]
    below: tuple[Option, ...] = ()

    @property
    def gpus(self) -> int:
        """Of each of the jobs."""
        return self.jobs[0].gpus


def kinds(jobs: Sequence[PackJob], servers: Servers) -> tuple[Kind, ...]:
    """Jobs with the same matrix are alike: programs count them, which loses nothing and makes them small."""
    alike: dict[object, list[PackJob]] = {}
    for job in jobs:
        alike.setdefault(job.matrix, []).append(job)
    return tuple(_kind(tuple(group), servers) for group in alike.values())


def _kind(jobs: tuple[PackJob, ...], servers: Servers) -> Kind:
    whole = options(jobs[0], servers)
    least = jobs[0].matrix.rate(servers.proportional) / base(jobs[0], servers)
    if not least:
        return Kind(jobs, (Option(servers.proportional, 0.0), *whole))
    return Kind(
        jobs,
        tuple(option for option in whole if option.worth >= least),
        tuple(option for option in whole if option.worth < least),
    )


def options(job: PackJob, servers: Servers) -> tuple[Option, ...]:
    """The cells in which a job runs, that one server has for a GPU, and that no cell with less is as fast as."""
    matrix, scale = job.matrix, base(job, servers)
    found: list[Option] = []
    best = [0.0] * len(matrix.memory_bytes)  # with so much memory and no more CPUs than in the rows so far
    for cpus, rates in zip(matrix.cpus, matrix.rates, strict=True):
        if cpus > servers.cpus * (1 + ROUNDING):
            break
        so_far = 0.0
        for column, (memory_bytes, rate) in enumerate(zip(matrix.memory_bytes, rates, strict=True)):
            if memory_bytes > servers.memory_bytes * (1 + ROUNDING):
                break
            so_far = max(so_far, best[column])
            if rate > so_far:
                found.append(Option(Point(cpus, memory_bytes), rate / scale))
                so_far = rate
            best[column] = so_far
    return tuple(found)
