"""Speeds of models on GPUs of a simulated cluster, by data sheets (sizing.step_time.datasheet), for comparing
schedulers.

An iteration is a pipeline of micro-batches: all stages once, and the slowest once more for each micro-batch but the
first; then replicas sum their gradients and the optimizer steps. A cell is as fast as the best split of its stages into
data and tensor parallelism that fits a GPU's memory. Every number is assumed, none was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sizing.step_time import datasheet
from studies.simulation.clusters import Pool
from studies.simulation.models import StageLoad, TrainedModel
from studies.simulation.reference import power_of_two, powers
from studies.simulation.types import Allocation, Speeds

_MICRO_BATCHES = 4
"""Micro-batches per stage: a pipeline of S stages works on 4 S micro-batches (Crius, section 8; GPipe).

It uses more if its memory needs them, or fewer if the batch has no more samples.
"""


class _Split(NamedTuple):
    """One way to run a cell: its load, and the roles of each stage's GPUs."""

    load: StageLoad
    stages: int
    dp: int
    tp: int
    micro_batches: int


class FormulaSpeeds:
    """Rates of models on pools by data sheets, computed on demand and cached."""

    def __init__(self, models: Mapping[str, TrainedModel], pools: Mapping[str, Pool]) -> None:
        self._models = models
        self._pools = pools
        self._rates: dict[tuple[str, Allocation], float] = {}
        self._data_parallel: dict[tuple[str, str, int], float] = {}
        self._splits: dict[tuple[str, int, int, int], tuple[_Split, ...]] = {}

    def rate(self, model: str, allocation: Allocation) -> float:
        """Return the iterations a second with the best split that fits; 0 if none does."""
        key = (model, allocation)
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = self._best(model, allocation)
        return found

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        """Return the iterations a second with a replica on each GPU; 0 if it does not fit one."""
        key = (model, gpu_type, gpus)
        found = self._data_parallel.get(key)
        if found is None:
            found = self._data_parallel[key] = self._fastest(model, gpu_type, self._ways(model, 1, gpus, 1))
        return found

    def _best(self, model: str, allocation: Allocation) -> float:
        each, rest = divmod(allocation.gpus, allocation.stages)
        if rest or not each or not power_of_two(each):
            return 0.0
        ways = [way for tp in powers(each) for way in self._ways(model, allocation.stages, each, tp)]
        return self._fastest(model, allocation.gpu_type, ways)

    def _ways(self, model: str, stages: int, each: int, tp: int) -> tuple[_Split, ...]:
        """Return the splits of a stage's GPUs with `tp` of them tensor-parallel, one per number of micro-batches.

        They do not depend on the GPU, so types share them.
        """
        key = (model, stages, each, tp)
        found = self._splits.get(key)
        if found is None:
            found = self._splits[key] = tuple(self._made(model, stages, each // tp, tp))
        return found

    def _made(self, model: str, stages: int, dp: int, tp: int) -> Iterator[_Split]:
        trained = self._models[model]
        samples = trained.global_batch // dp
        least = min(_MICRO_BATCHES * stages, samples) if stages > 1 else 1
        for micro_batches in powers(samples):
            if micro_batches >= least and (load := trained.stage(stages, dp, tp, micro_batches)) is not None:
                yield _Split(load, stages, dp, tp, micro_batches)

    def _fastest(self, model: str, gpu_type: str, ways: tuple[_Split, ...] | list[_Split]) -> float:
        pool = self._pools[gpu_type]
        flops = datasheet.peak_flops(pool.gpu, self._models[model].precision) * datasheet.ARITHMETIC.usual
        times = [_iteration_s(way, pool, flops) for way in ways if way.load.peak_bytes <= pool.gpu.memory_bytes]
        return 1.0 / min(times) if times else 0.0


def _iteration_s(way: _Split, pool: Pool, flops: float) -> float:
    load, each = way.load, way.dp * way.tp
    memory = pool.gpu.memory_bytes_s * datasheet.TRAFFIC.usual
    link, network = pool.gpu.link_bytes_s * datasheet.LINKS.usual, pool.network_bytes_s * datasheet.LINKS.usual
    # The products' own traffic overlaps with their arithmetic; all else takes its own time.
    micro_s = max(load.flops / flops, load.weight_bytes / memory) + load.moved_bytes / memory
    if way.tp > 1:
        tensor = link if way.tp <= pool.per_node else min(link, network)
        micro_s += 2 * load.tensor_bytes * (way.tp - 1) / way.tp / tensor
    if way.stages > 1:
        # The GPUs of a node share its network link.
        beside = link if way.stages * each <= pool.per_node else min(link, network / min(pool.per_node, each))
        micro_s += 2 * load.across_bytes / way.tp / beside
    total = (load.even + way.micro_batches - 1) * micro_s
    if way.dp > 1:
        replicas = link if each <= pool.per_node else min(link, network / min(way.tp, pool.per_node))
        total += load.data_bytes * (way.dp - 1) / way.dp / replicas
    return total + load.update_bytes / memory


class WithError:
    """Speeds of an estimator that is wrong by up to `share`, by a factor for each model and allocation.

    Whether a model fits is not changed. The factor is uniform in 1 - share to 1 + share and the same at each call: the
    error of an estimate, not noise.
    """

    def __init__(self, speeds: Speeds, share: float, seed: int) -> None:
        self._speeds = speeds
        self._share = share
        self._seed = seed
        self._factors: dict[tuple[str, str, int, int], float] = {}

    def rate(self, model: str, allocation: Allocation) -> float:
        """Return the rate with its error."""
        kind, gpus, stages = allocation.gpu_type, allocation.gpus, allocation.stages
        return self._speeds.rate(model, allocation) * self._factor(model, kind, gpus, stages)

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        """Return the rate with an error of its own."""
        return self._speeds.data_parallel_rate(model, gpu_type, gpus) * self._factor(model, gpu_type, gpus, -1)

    def _factor(self, model: str, gpu_type: str, gpus: int, stages: int) -> float:
        key = (model, gpu_type, gpus, stages)
        factor = self._factors.get(key)
        if factor is None:
            words = [self._seed, gpus, stages + 1, *f"{model} {gpu_type}".encode()]
            draw = float(np.random.default_rng(words).uniform(-1.0, 1.0))
            factor = self._factors[key] = 1.0 + self._share * draw
        return factor


def with_error(speeds: Speeds, share: float, seed: int) -> Speeds:
    """Return the speeds for policies if estimates are wrong by up to `share` (0.2 is 20 %); the same ones for 0."""
    return WithError(speeds, share, seed) if share else speeds
