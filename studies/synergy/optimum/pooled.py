"""Synergy-OPT's first program: the most throughput if all servers were one, relaxed and in whole choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.base.errors import SizingError
from studies.synergy.optimum.choices import Kind, kinds
from studies.synergy.optimum.program import Program, Solved
from studies.synergy.packing.types import PackJob, Servers


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of any packing's mean throughput over the proportional one: `relaxed` is never below `whole`.

    `whole` is with one cell of its matrix for each job, `relaxed` with any mixture of cells.
    """

    relaxed: float
    whole: float


def bounds(jobs: Sequence[PackJob], servers: Servers) -> Bounds:
    """Return both bounds per GPU that jobs ask for, with no job slower than with its proportional share."""
    alike = kinds(jobs, servers)
    gpus = sum(job.gpus for job in jobs)
    relaxed = _solved(_program(alike, servers, integer=False)).value
    whole = _solved(_program(alike, servers, integer=True)).bound
    return Bounds(relaxed / gpus, min(relaxed, whole) / gpus)


def chosen(alike: Sequence[Kind], servers: Servers) -> list[list[int]]:
    """Return the number of jobs of each kind with each of its options, at the most throughput."""
    x = iter(_solved(_program(alike, servers, integer=True)).x)
    return [[round(next(x)) for _ in kind.options] for kind in alike]


def _program(alike: Sequence[Kind], servers: Servers, *, integer: bool) -> Program:
    """Build max sum g W y under the totals of CPUs and memory, sum y = 1 per job, and sum W y >= its proportional W.

    A column counts the jobs of a kind that have an option. In whole numbers the last row would only restrict the
    options, so it is left out there.
    """
    program = Program()
    gpus = servers.count * servers.gpus
    cpus, memory = program.row(high=gpus), program.row(high=gpus)  # in GPU shares
    for kind in alike:
        jobs = program.row(len(kind.jobs), len(kind.jobs))
        floor = None if integer or not kind.below else program.row(low=len(kind.jobs) * kind.least.value)
        for option in kind.options if integer else (*kind.options, *kind.below):
            rows = {
                cpus: kind.gpus * option.cpus,
                memory: kind.gpus * option.memory,
                jobs: 1.0,
            }
            if floor is not None:
                rows[floor] = option.value
            program.column(kind.gpus * option.value, rows, high=len(kind.jobs), integer=integer)
    return program


def _solved(program: Program) -> Solved:
    found = program.solve()
    if found is None:  # every job with its proportional share is a point: only a limit of the solver can be the cause
        raise SizingError("the integer program found nothing within its limits: pack with priced")
    return found
