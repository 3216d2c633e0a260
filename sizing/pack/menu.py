"""What a job can be given for each of its GPUs: cells of its matrix, no slower than with its share of a server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sizing.cpu.matrix import Matrix, Point


@dataclass(frozen=True, slots=True)
class Option:
    """A cell of a matrix for each GPU; `value` is its rate over that with the proportional share.

    `cpus` and `memory` are in shares of a server's GPU (1 is proportional), so that they weigh alike; `point` has them as
    they are.
    """

    cpus: float
    memory: float
    value: float
    point: Point


@dataclass(frozen=True, slots=True)
class Menu:
    """Options in the order of their value; `base` is the one within the proportional share, which is always there."""

    gpus: int
    options: tuple[Option, ...]
    base: int


@lru_cache(maxsize=4096)
def menu(matrix: Matrix, proportional: Point) -> Menu | None:
    """The cells that reach the rate with the proportional share and that no other cell beats with as little.

    None for a job that does not run with its share.
    """
    floor = matrix.rate(proportional)
    if floor <= 0:
        return None
    cells: list[Option] = []
    best_left = [0.0] * len(matrix.memory_bytes)
    for cpus, rates in zip(matrix.cpus, matrix.rates, strict=True):
        best = 0.0
        for j, (memory_bytes, rate) in enumerate(zip(matrix.memory_bytes, rates, strict=True)):
            # as fast with fewer CPUs, or with less memory: nobody takes this one
            if rate >= floor and rate > best and rate > best_left[j]:
                shares = cpus / proportional.cpus, memory_bytes / proportional.memory_bytes
                cells.append(Option(*shares, rate / floor, Point(cpus, memory_bytes)))
            best = best_left[j] = max(best, rate, best_left[j])
    cells.sort(key=lambda cell: (cell.value, cell.cpus + cell.memory))
    within = 1 + 1e-6
    base = next(i for i, cell in enumerate(cells) if cell.cpus <= within and cell.memory <= within)
    return Menu(matrix.gpus, tuple(cells), base)
