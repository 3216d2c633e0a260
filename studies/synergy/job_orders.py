"""Orders in which a round-based scheduler serves its jobs: the policies that Synergy is tried with (OSDI 2022)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sizing.base.errors import UsageError
from studies.simulation.world import SimulatedJob

LEVEL_GPU_S = 3600.0
"""Attained service up to which a job is on the first level of LAS; each next level is twice as long."""
_RHO_STEP = 0.05
"""Ratios of finish times that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A job at a time: its iterations left, its rate with a GPU's share of a server, and its GPU seconds so far."""

    job: SimulatedJob
    left: float
    proportional_rate: float
    attained_gpu_s: float
    now_s: float


Order = Callable[[Standing], float]
"""A function that returns a job's key: the least goes first; among equals running jobs, then the first submitted."""


def fifo(one: Standing) -> float:
    """Return the key of first come, first served."""
    return one.job.submit_s


def srtf(one: Standing) -> float:
    """Return the key of shortest remaining time first, by the rate with its proportional share."""
    return one.left / one.proportional_rate


def las(one: Standing) -> float:
    """Return the key of least attained service first (Tiresias), in levels of GPU seconds.

    Within a level it is first come, first served: plain LAS would exchange equals at every round, and pay a restart for
    each.
    """
    level = math.frexp(one.attained_gpu_s / LEVEL_GPU_S)[1] if one.attained_gpu_s >= LEVEL_GPU_S else 0
    return float(level)


def ftf(one: Standing) -> float:
    """Return the key of finish-time fairness (Themis): the greatest rho first.

    Rho is the expected total time to the end over that alone. Alone is with its proportional share since its
    submission. That N jobs share the cluster would divide every rho of a moment by the same number, which changes no
    order. Steps keep equals from being exchanged at every round.
    """
    alone_s = one.job.iterations / one.proportional_rate
    shared_s = one.now_s - one.job.submit_s + one.left / one.proportional_rate
    return -float(math.floor(math.log(shared_s / alone_s) / math.log1p(_RHO_STEP) + 1e-9))


ORDERS: Mapping[str, Order] = {"fifo": fifo, "srtf": srtf, "las": las, "ftf": ftf}


def order(name: str) -> Order:
    """Return the order of a name. Raises UsageError, one line, for an unknown name."""
    if name in ORDERS:
        return ORDERS[name]
    near = difflib.get_close_matches(name.lower(), ORDERS, n=1, cutoff=0.5)
    told = f"did you mean {near[0]}?" if near else f"one of {', '.join(ORDERS)}"
    raise UsageError(f"no order is called {name[:40]!r}: {told}")
