"""The options of a job per GPU: cells of its matrix that are no slower than its share of a server."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sizing.cpu.sensitivity.matrix import CpuMemory, Matrix


class Option(NamedTuple):
    """A cell of a matrix, per GPU, with its value: its rate over that with the proportional share.

    `cpus` and `memory` are in shares of a server's GPU (1 is proportional), so that they weigh the same; `point` has
    the absolute amounts.
    """

    cpus: float
    memory: float
    value: float
    point: CpuMemory


class Menu(NamedTuple):
    """Options in the order of their value; the one at `base` is within the proportional share, so always available."""

    gpus: int
    options: tuple[Option, ...]
    base: int


@lru_cache(maxsize=4096)
def menu(matrix: Matrix, proportional: CpuMemory) -> Menu:
    """Return the cells that reach the rate of the proportional share and that no other cell reaches with as little.

    A job that does not run with its share has that share, with value 0, and all cells with which it runs; its best rate
    then counts 1.
    """
    floor = matrix.rate(proportional)
    unit = floor or matrix.best or 1.0
    options = [] if floor else [Option(1.0, 1.0, 0.0, proportional)]
    above = [0.0] * len(matrix.memory_bytes)  # the best rate of all rows so far with at most this memory
    for cpus, rates in zip(matrix.cpus, matrix.rates, strict=True):
        best = 0.0
        for j, rate in enumerate(rates):
            best = max(best, above[j])
            if rate > best:
                best = rate
                if rate >= floor:
                    point = CpuMemory(cpus, matrix.memory_bytes[j])
                    shares = point.cpus / proportional.cpus, point.memory_bytes / proportional.memory_bytes
                    options.append(Option(*shares, rate / unit, point))
            above[j] = best
    options.sort(key=lambda option: (option.value, option.cpus + option.memory))
    # the matrix itself counts a point that is short of a cell only by rounding as that cell
    within = 1 + 1e-6
    base = next(i for i, option in enumerate(options) if option.cpus <= within and option.memory <= within)
    return Menu(matrix.gpus, tuple(options), base)
