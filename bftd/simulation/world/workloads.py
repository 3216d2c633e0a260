"""The regular jobs of a simulated world, by the name of its workload, each drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log
from random import Random

from bftd.pool.backfill.model import Component
from bftd.simulation.slurm.model import SimulatedJob
from bftd.simulation.world.machine.loop import BEGIN_S

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_FIRST_S = 5.0
_USERS = 5

# Summit's week from 2021-02-10, in the data of BFTrainer's authors: 8.3 % of 4,734 nodes are idle, a node becomes idle
# 6.7 times a day, for 1,068 s on average, and 41 nodes get busy at a time, half of the times at most 4.
_SUMMIT_BUSY = 0.917
_SUMMIT_RUN_S = _DAY_S / 6.72 - 1_068.0
_SUMMIT_NODES = 4.0
_SUMMIT_SPREAD = (2.0 * log(41.0 / 4.0)) ** 0.5


def steady(random: Random, nodes: int, hours: float) -> list[SimulatedJob]:
    """Return small and large jobs of minutes, that keep about two thirds of the nodes busy."""
    jobs: list[SimulatedJob] = []
    at_s = _FIRST_S
    while at_s < hours * _HOUR_S:
        count = min(nodes, 1 + int(random.expovariate(4.0 / nodes)))
        run_s = min(_HOUR_S, 20.0 + random.expovariate(1 / 300.0))
        jobs.append(_job(random, len(jobs) + 1, at_s, run_s, count, nodes))
        at_s += random.expovariate(0.66 * nodes / (320.0 * (1 + nodes / 4.0)))
    return jobs


def summit(random: Random, nodes: int, hours: float) -> list[SimulatedJob]:
    """Return jobs of hours that leave windows as often as on Summit, on a machine that is full at the beginning."""
    jobs: list[SimulatedJob] = []
    drawn = [_summit_nodes(random, nodes) for _ in range(1000)]
    apart_s = _SUMMIT_RUN_S * sum(drawn) / len(drawn) / (_SUMMIT_BUSY * nodes)
    at_s, held = _FIRST_S, 0
    while at_s < hours * _HOUR_S:
        count, run_s = _summit_nodes(random, nodes), min(_DAY_S, random.expovariate(1.0 / _SUMMIT_RUN_S))
        jobs.append(_job(random, len(jobs) + 1, at_s, 20.0 + run_s, count, nodes))
        held += count
        if held >= _SUMMIT_BUSY * nodes:
            at_s += random.expovariate(1.0 / apart_s)
    return jobs


WORKLOADS: Mapping[str, Callable[[Random, int, float], list[SimulatedJob]]] = {"steady": steady, "summit": summit}
"""The workloads by name; arguments are the source of randomness, the nodes, and the hours in which jobs come."""


def _summit_nodes(random: Random, nodes: int) -> int:
    return max(1, min(nodes, round(_SUMMIT_NODES * exp(random.gauss(0.0, _SUMMIT_SPREAD)))))


def _job(random: Random, number: int, at_s: float, run_s: float, count: int, nodes: int) -> SimulatedJob:
    limit_s = 60.0 * (2 + int(run_s * random.uniform(1.0, 3.0) / 60.0))
    part = Component((1 << nodes) - 1, count)
    return SimulatedJob(number, BEGIN_S + at_s, run_s, limit_s, part, user=f"u{random.randint(1, _USERS)}")
