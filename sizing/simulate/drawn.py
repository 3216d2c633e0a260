"""Jobs for simulated servers, drawn from matrices: Poisson arrivals, lognormal durations, a mix of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sizing.cpu.matrix import Matrices
from sizing.errors import UsageError
from sizing.pack.draw import Mix
from sizing.pack.types import Servers
from sizing.simulate.world import SimulatedJob

MEDIAN_S, SPREAD = 2.2 * 3600.0, 0.97
"""Of lognormal durations: median 2.2 h, mean 3.5 h, as of the public trace cluster01 (nearly all jobs of one GPU)."""
_LEAST_S, _MOST_S = 300.0, 7 * 86400.0
ONE_GPU: Mapping[int, float] = {1: 1.0}
"""Shares of GPU counts: jobs of one GPU only."""


def drawn(
    matrices: Matrices,
    mix: Mix,
    servers: Servers,
    *,
    seed: int,
    count: int,
    load: float,
    sizes: Mapping[int, float] = ONE_GPU,
    durations_s: Sequence[float] = (),
) -> tuple[SimulatedJob, ...]:
    """`count` jobs in order of submission, whose durations are those with a GPU's share of a server.

    Each is of a class by its share in `mix`, of a GPU count by its share in `sizes`, then of any model of both. With
    `durations_s` durations are drawn from these. Times between submissions are exponential, and stretched until all
    jobs together ask for `load` times all GPUs up to the last submission. The same arguments give the same jobs. Raises
    UsageError where the file has no such job, where one does not run with its share, and for fewer than two jobs.
    """
    if count < 2 or not 0 < load < math.inf:
        raise UsageError(f"{count} jobs at load {load:g}: simulate at least two, at a load above 0")
    names = _names(matrices, mix, sizes)
    random = np.random.default_rng([seed, 61])
    if durations_s:
        durations = random.choice(np.asarray(durations_s, float), count)
    else:
        durations = random.lognormal(math.log(MEDIAN_S), SPREAD, count)
    durations = np.clip(durations, _LEAST_S, _MOST_S)
    times = np.concatenate([[0.0], np.cumsum(random.exponential(1.0, count - 1))])
    kinds = random.choice(len(mix), count, p=list(mix.values()))
    counts = random.choice(list(sizes), count, p=list(sizes.values()))
    which = random.random(count)
    stretch = float(durations @ counts) / (load * servers.count * servers.gpus) / float(times[-1])
    found = []
    for at in range(count):
        able = names[list(mix)[int(kinds[at])], int(counts[at])]
        name = able[int(which[at] * len(able))]
        rate = matrices[name].matrix.rate(servers.proportional)
        if rate <= 0:
            raise UsageError(
                f"{name} does not run with a GPU's share of a server (0 in its matrix): take servers with more CPUs or "
                f"memory, or leave it out"
            )
        submit_s, iterations = float(times[at]) * stretch, float(durations[at]) * rate
        found.append(SimulatedJob(f"{at}", name, submit_s, iterations, int(counts[at]), ""))
    return tuple(found)


def _names(matrices: Matrices, mix: Mix, sizes: Mapping[int, float]) -> dict[tuple[str, int], list[str]]:
    """The models of each class and GPU count."""
    found: dict[tuple[str, int], list[str]] = {}
    for name in sorted(matrices):
        found.setdefault((matrices[name].kind, matrices[name].matrix.gpus), []).append(name)
    for kind in (kind for kind, share in mix.items() if share > 0):
        for gpus in (gpus for gpus, share in sizes.items() if share > 0):
            if (kind, gpus) not in found:
                raise UsageError(f"the file has no job of class {kind} with {gpus} GPUs: add one, or change the mix")
    return found
