"""The samples per second of data-parallel training on 1, 2, 4, ... nodes of a class: an initial rule.

A node of `workers` workers takes part in every step with as many batches of `batch` samples, so that n nodes make

    n * workers * batch / (compute + the part of the all-reduce that does not hide behind the backward pass)

samples a second. The computation is a step's traced operators on a data sheet's figures (`sizing.step_time.datasheet`),
a profile of the whole model on that type of GPU if there is one (`sizing.cells`), or the CPU time of a real step if
nodes have no GPU. The all-reduce is a ring's over the slowest link. All of it is `assumed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.cells.shards import ShardProfile, StageShard
from sizing.child.stepping import RealStep
from sizing.inventory.gpus import GpuType
from sizing.model.trace import StepTrace
from sizing.step_time import datasheet
from sizing.step_time.datasheet import WEIGHT_BYTES, Efficiency

CORES = Efficiency(0.7, 0.3, 1.0)
"""Speed of cores together over one core, as a share of their number: they share the memory's bandwidth."""
NETWORK_BYTES_S = 1.25e10
"""Default bandwidth from one node to another: 100 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A class of nodes: `workers` and `gpus` of each node, with the type `gpu`; None and 0 if they have only CPUs."""

    name: str
    workers: int
    gpu: GpuType | None = None
    gpus: int = 0
    cpus: int = 1
    network_bytes_s: float = NETWORK_BYTES_S


Curve = tuple[tuple[int, Estimate], ...]
"""Samples/s by number of nodes, in ascending order; more nodes are never slower."""


def on_gpus(trace: StepTrace, nodes: Nodes, sizes: Iterable[int], precision: str = "") -> Curve:
    """Return the curve on nodes with GPUs from one worker's traced step; by default in the step's precision.

    The step has no replicas.
    """
    assert nodes.gpu is not None
    compute = datasheet.step_s(datasheet.traced(trace), Parallel(), nodes.gpu, 1, nodes.network_bytes_s, precision)
    # workers that share a GPU take turns on it
    step = scaled(compute, float(-(-nodes.workers // max(1, nodes.gpus))))
    return _curve(step, trace.batch, trace.parameters, nodes, sizes, nodes.gpu.link_bytes_s)


def on_profile(
    found: Mapping[StageShard, ShardProfile], batch: int, nodes: Nodes, sizes: Iterable[int]
) -> Curve | None:
    """Return the curve on nodes with GPUs of a type on which the whole model was profiled; None if it was not.

    Among profiles with other batches the nearest one is used, with the same time per sample.
    """
    assert nodes.gpu is not None
    last = max((shard.last for shard in found), default=-1)
    whole = [profile for shard, profile in found.items() if (shard.first, shard.last, shard.tp) == (0, last, 1)]
    if not whole:
        return None
    near = min(whole, key=lambda profile: abs(profile.shard.batch - batch))
    compute, update = scaled(near.compute_s, batch / near.shard.batch), near.update_s
    step = Estimate(compute.value + update.value, compute.low + update.low, compute.high + update.high, "assumed")
    step = scaled(step, float(-(-nodes.workers // max(1, nodes.gpus))))
    return _curve(step, batch, near.parameters, nodes, sizes, nodes.gpu.link_bytes_s)


def on_cpus(ran: RealStep, nodes: Nodes, sizes: Iterable[int]) -> Curve:
    """Return the curve on nodes without GPUs, from a worker's step that was run on one core."""
    cores = max(1.0, nodes.cpus / nodes.workers)
    usual, least, most = (max(1.0, cores * part) for part in (CORES.usual, CORES.least, CORES.most))
    step = Estimate(ran.core_s / usual, ran.core_s / most, ran.core_s / least, "assumed")
    return _curve(step, ran.batch, ran.parameters, nodes, sizes, nodes.network_bytes_s)


def sizes_of(low: int, high: int, only: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the numbers of nodes to evaluate a curve at: powers of two and both ends, or the nearest in `only`."""
    allowed = sorted(only)
    powers = {2**power for power in range(high.bit_length()) if low <= 2**power <= high}
    if not allowed:
        return tuple(sorted(powers | {low, high}))
    near = {min(allowed, key=lambda size: abs(size - power)) for power in powers}
    return tuple(sorted(near | {allowed[0], allowed[-1]}))


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return `factor` times the estimate."""
    return Estimate(estimate.value * factor, estimate.low * factor, estimate.high * factor, estimate.origin)


def _curve(
    compute: Estimate, batch: int, parameters: int, nodes: Nodes, sizes: Iterable[int], inside_bytes_s: float
) -> Curve:
    ordered = sorted(set(sizes))
    steps = [_step(compute, parameters, nodes, size, inside_bytes_s) for size in ordered]
    samples = [float(size * nodes.workers * batch) for size in ordered]
    rates = [
        tuple(made / step_s for step_s in (step.value, step.high, step.low))
        for made, step in zip(samples, steps, strict=True)
    ]
    # beyond the fastest size, a trainer counts as fast as there: it would not be given more
    risen = [accumulate(column, max) for column in zip(*rates, strict=True)]
    return tuple(
        (size, Estimate(value, low, high, "assumed")) for size, value, low, high in zip(ordered, *risen, strict=True)
    )


def _step(compute: Estimate, parameters: int, nodes: Nodes, size: int, inside_bytes_s: float) -> Estimate:
    """Return the time of a step of all workers of `size` nodes; at best all of the all-reduce hides, at worst none."""
    ranks = size * nodes.workers
    slowest = inside_bytes_s if size == 1 else min(inside_bytes_s, nodes.network_bytes_s)
    return datasheet.beside(compute, datasheet.all_reduce_s(WEIGHT_BYTES * parameters, ranks, size, slowest))
