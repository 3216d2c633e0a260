"""Jobs for simulated servers, drawn from matrices: Poisson arrivals, lognormal durations, a mix of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sizing.base.errors import UsageError
from sizing.cpu.sensitivity.matrix import Matrices
from studies.simulation.world import SimulatedJob
from studies.synergy.packing.draw import Mix
from studies.synergy.packing.types import Servers

MEDIAN_S, SPREAD = 2.2 * 3600.0, 0.97
"""Parameters of lognormal durations: median 2.2 h, mean 3.5 h, as in the public trace cluster01.

Nearly all jobs of that trace have one GPU.
"""
_LEAST_S, _MOST_S = 300.0, 7 * 86400.0
Floats = NDArray[np.float64]
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
    """Return jobs in order of submission; their durations are those with a GPU's share of a server.

    Each is of a class by its share in `mix`, of a GPU count by its share in `sizes`, then of any model of both. With
    `durations_s` durations are drawn from these. Times between the submissions of `count` jobs are exponential, and
    stretched until these together ask for `load` times all GPUs up to the last submission. Before them, at 0 s, come
    jobs for that share of the GPUs (at most all), as far along as running jobs at a random time: otherwise it would
    take days until long jobs reach their usual number. The same arguments give the same jobs. Raises UsageError if the
    file has no such job, if a job does not run with its share, and for fewer than two jobs.
    """
    if count < 2 or not 0 < load < math.inf:
        raise UsageError(f"{count} jobs at load {load:g}: simulate at least two, at a load above 0")
    draw = _Draw(matrices, mix, servers, sizes, durations_s)
    random = np.random.default_rng([seed, 61])
    coming = draw.jobs(random, draw.durations(random, count))
    times = np.concatenate([[0.0], np.cumsum(random.exponential(1.0, count - 1))])
    gpus = servers.count * servers.gpus
    stretch = sum(job.gpus * duration_s for job, duration_s in coming) / (load * gpus) / float(times[-1])
    there: list[SimulatedJob] = []
    left = min(load, 1.0) * gpus
    for job, _ in draw.jobs(random, draw.remainders(random, gpus)):
        left -= job.gpus
        if left < 0:
            break
        there.append(replace(job, id=f"there-{len(there)}"))
    return (*there, *(replace(job, submit_s=float(at) * stretch) for (job, _), at in zip(coming, times, strict=True)))


class _Draw:
    """The source that jobs are drawn from."""

    def __init__(
        self,
        matrices: Matrices,
        mix: Mix,
        servers: Servers,
        sizes: Mapping[int, float],
        durations_s: Sequence[float],
    ) -> None:
        self._matrices, self._mix, self._sizes = matrices, mix, sizes
        self._names = _names(matrices, mix, sizes)
        self._rates = {name: each.matrix.rate(servers.proportional) for name, each in matrices.items()}
        self._durations_s = np.asarray(durations_s, float)

    def durations(self, random: np.random.Generator, count: int) -> Floats:
        """Return the durations of `count` jobs, in seconds."""
        if len(self._durations_s):
            found = random.choice(self._durations_s, count)
        else:
            found = random.lognormal(math.log(MEDIAN_S), SPREAD, count)
        clipped: Floats = np.clip(found, _LEAST_S, _MOST_S)
        return clipped

    def remainders(self, random: np.random.Generator, count: int) -> Floats:
        """Return the remaining durations of `count` running jobs: longer jobs are more likely to be running."""
        many = self.durations(random, max(10_000, count))
        found = random.choice(many, count, p=many / many.sum())
        left: Floats = np.maximum(found * random.random(count), 1.0)
        return left

    def jobs(self, random: np.random.Generator, durations: Floats) -> list[tuple[SimulatedJob, float]]:
        """Return a job for each duration, with it; all at 0 s."""
        count = len(durations)
        kinds = random.choice(len(self._mix), count, p=list(self._mix.values()))
        sizes = random.choice(list(self._sizes), count, p=list(self._sizes.values()))
        which = random.random(count)
        found = []
        for at in range(count):
            able = self._names[list(self._mix)[int(kinds[at])], int(sizes[at])]
            name, duration_s = able[int(which[at] * len(able))], float(durations[at])
            if self._rates[name] <= 0:
                raise UsageError(
                    f"{name} does not run with a GPU's share of a server (0 in its matrix): take servers with more "
                    f"CPUs or memory, or leave it out"
                )
            job = SimulatedJob(f"{at}", name, 0.0, duration_s * self._rates[name], int(sizes[at]), "")
            found.append((job, duration_s))
        return found


def _names(matrices: Matrices, mix: Mix, sizes: Mapping[int, float]) -> dict[tuple[str, int], list[str]]:
    """Return the models of each class and GPU count."""
    found: dict[tuple[str, int], list[str]] = {}
    for name in sorted(matrices):
        found.setdefault((matrices[name].kind, matrices[name].matrix.gpus), []).append(name)
    for kind in (kind for kind, share in mix.items() if share > 0):
        for gpus in (gpus for gpus, share in sizes.items() if share > 0):
            if (kind, gpus) not in found:
                raise UsageError(f"the file has no job of class {kind} with {gpus} GPUs: add one, or change the mix")
    return found
