"""Hands out what the servers have beyond what every job must have, step by step, where a step is worth the most.

Everyone begins with the least it must have. A step lifts one job to a better cell of its matrix; steps are taken in the
order of what they gain for what they take (CPUs and memory at their prices) and only where every server of the job has
it. Each step leaves what the servers have not given yet smaller or dearer to reach, so this ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from sizing.pack.menu import Menu

SPARE = 1e-9
"""Shares of a GPU by which sums may be off, for sums of fractions are."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a share of CPUs and of memory costs against each other."""

    cpus: float = 1.0
    memory: float = 1.0


@dataclass(slots=True)
class Stock:
    """What each server still has, in shares of a GPU."""

    cpus: list[float]
    memory: list[float]


Places = Sequence[tuple[int, int]]
"""The servers of a job with the GPUs it has on each."""


Steps = tuple[tuple[tuple[float, int, float, float], ...], ...]
"""For each option the better ones, the best step first: its negated worth, where to, CPUs and memory more."""


def steps(menu: Menu, prices: Prices) -> Steps:
    """All steps of a menu; those that gain without taking more at these prices come before all others."""
    found = []
    for now in menu.options:
        worth = []
        for k, to in enumerate(menu.options):
            gain, cpus, memory = to.value - now.value, to.cpus - now.cpus, to.memory - now.memory
            cost = cpus * prices.cpus + memory * prices.memory
            if gain > 0 and cost > 0:
                worth.append((-gain / cost, k, cpus, memory))
            elif cost < 0 <= gain:
                worth.append((float("-inf"), k, cpus, memory))
        # of equals the greatest first
        worth.sort(key=lambda step: (step[0], -step[1]))
        found.append(tuple(worth))
    return tuple(found)


def fill(tables: Sequence[Steps], places: Sequence[Places], stock: Stock, chosen: list[int]) -> None:
    """Takes all steps that there is stock for: `chosen`, the option of each job, and `stock` are changed in place.

    `tables` are the steps of each job, `places` where it is; of jobs whose steps are worth the same the first is served
    first.
    """
    heap: list[tuple[float, int, int, float, float]] = []

    def push(job: int) -> None:
        for worth, to, cpus, memory in tables[job][chosen[job]]:
            for server, gpus in places[job]:
                if gpus * cpus > left_cpus[server] + SPARE or gpus * memory > left_memory[server] + SPARE:
                    break
            else:
                heapq.heappush(heap, (worth, job, to, cpus, memory))
                return

    left_cpus, left_memory = stock.cpus, stock.memory
    for job in range(len(tables)):
        push(job)
    while heap:
        _, job, to, cpus, memory = heapq.heappop(heap)
        for server, gpus in places[job]:
            if gpus * cpus > left_cpus[server] + SPARE or gpus * memory > left_memory[server] + SPARE:
                break
        else:
            for server, gpus in places[job]:
                left_cpus[server] -= gpus * cpus
                left_memory[server] -= gpus * memory
            chosen[job] = to
        push(job)
