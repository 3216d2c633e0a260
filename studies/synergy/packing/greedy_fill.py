"""Distribution of the servers' spare CPUs and memory, in steps of the matrices, where a step is worth most.

Every job begins with the least it must have. A step lifts a job to a better cell of its matrix. Steps are taken in the
order of their gain over their cost, CPUs and memory at their prices, and only if every server of the job has enough. A
step gains, or gains nothing and costs less at these prices, so no job returns to an earlier cell, and this ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from studies.synergy.packing.job_options import Menu

SPARE = 1e-9
"""Rounding tolerance of sums, in shares of a GPU, because sums of fractions are inexact."""

Places = tuple[tuple[int, int], ...]
"""The servers of a job with the GPUs it has on each."""


class Prices(NamedTuple):
    """The prices of a share of CPUs and of memory, relative to each other."""

    cpus: float = 1.0
    memory: float = 1.0


class Step(NamedTuple):
    """A step from a job's option to a better one; `worth` is negated, so that the best is the least."""

    worth: float
    to: int
    cpus: float
    memory: float


class Steps:
    """The steps of a menu at given prices, none to an option with more than `most` of a server's shares per GPU."""

    __slots__ = ("_best", "menu", "most", "prices")

    def __init__(self, menu: Menu, prices: Prices, most: tuple[float, float]) -> None:
        self.menu, self.prices, self.most = menu, prices, most
        self._best: dict[int, Step | None] = {}

    def best(self, at: int) -> Step | None:
        """Return the best step from an option if enough of everything is free."""
        if at not in self._best:
            now = self.menu.options[at]
            self._best[at] = self.within(at, self.most[0] - now.cpus, self.most[1] - now.memory)
        return self._best[at]

    def within(self, at: int, cpus: float, memory: float) -> Step | None:
        """Return the best step from an option that takes no more than this per GPU; of equals the greatest."""
        now_cpus, now_memory, now_value, _ = self.menu.options[at]
        cpu_price, memory_price = self.prices
        best, best_worth = None, 0.0
        options = self.menu.options
        for to in range(len(options) - 1, -1, -1):
            to_cpus, to_memory, to_value, _ = options[to]
            if to_value < now_value:
                break  # options are in the order of their values
            more_cpus, more_memory = to_cpus - now_cpus, to_memory - now_memory
            if more_cpus > cpus or more_memory > memory:
                continue
            cost = more_cpus * cpu_price + more_memory * memory_price
            if cost > 0:
                worth = (now_value - to_value) / cost
            else:
                worth = float("-inf") if cost < 0 or to_value > now_value else 0.0
            if worth < best_worth:
                best, best_worth = Step(worth, to, more_cpus, more_memory), worth
        return best


class Stock:
    """The CPUs and memory left on each server, in shares of a GPU."""

    __slots__ = ("cpus", "memory")

    def __init__(self, servers: int, gpus: float) -> None:
        self.cpus = [float(gpus)] * servers
        self.memory = [float(gpus)] * servers

    def take(self, places: Places, cpus: float, memory: float) -> None:
        """Take CPUs and memory for each GPU of a job."""
        for server, gpus in places:
            self.cpus[server] -= gpus * cpus
            self.memory[server] -= gpus * memory

    def left(self, places: Places) -> tuple[float, float]:
        """Return how much more each GPU of a job can have."""
        if len(places) == 1:
            server, gpus = places[0]
            return self.cpus[server] / gpus + SPARE, self.memory[server] / gpus + SPARE
        return (
            min(self.cpus[server] / gpus for server, gpus in places) + SPARE,
            min(self.memory[server] / gpus for server, gpus in places) + SPARE,
        )


def begin(steps: Sequence[Steps], places: Sequence[Places], stock: Stock) -> list[int]:
    """Return the option of each job to begin with, which is within its share, and take it from `stock`."""
    for each, of in zip(steps, places, strict=True):
        option = each.menu.options[each.menu.base]
        stock.take(of, option.cpus, option.memory)
    return [each.menu.base for each in steps]


def fill(steps: Sequence[Steps], places: Sequence[Places], stock: Stock, chosen: list[int]) -> None:
    """Take all steps that there is stock for; change `chosen`, the option of each job, and `stock` in place.

    Among jobs whose steps are worth the same the first is served first.
    """
    heap = []
    for job, of in enumerate(steps):
        if (step := of.best(chosen[job])) is not None:
            heap.append((step.worth, job, step))
    heapq.heapify(heap)
    while heap:
        _, job, step = heap[0]
        cpus, memory = stock.left(places[job])
        after: Step | None
        if step.cpus <= cpus and step.memory <= memory:
            stock.take(places[job], step.cpus, step.memory)
            chosen[job] = step.to
            after = steps[job].best(step.to)
        else:
            after = steps[job].within(chosen[job], cpus, memory)
        if after is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (after.worth, job, after))
