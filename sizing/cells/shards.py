"""The units that are profiled on one device: one rank's part of a stage, for one split and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.estimate import Estimate


@dataclass(frozen=True, slots=True, order=True)
class StageShard:
    """Operators `first` to `last` as one of `tp` tensor-parallel ranks runs them on `batch` samples.

    Data parallelism only makes `batch` smaller: with dp replicas the shard has 1/dp of the micro-batch.
    """

    first: int
    last: int
    batch: int
    tp: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """`calls` collectives of one kind and of `bytes` each, in a forward and backward pass of a shard.

    `kind` is all_reduce, all_gather, reduce_scatter, all_to_all or broadcast. `bytes` is the size of the whole tensor
    (for all_gather and reduce_scatter the gathered one), as nccl-tests counts it.
    """

    kind: str
    bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class ShardProfile:
    """A forward and backward pass of a shard, without its collectives, on one device.

    `device` is the device's type: a GPU type of the inventory's catalogue, or "cpu". `compute_s` is the median over
    `rounds` with its 95 % confidence interval as low and high; `update_s` is the optimizer's step. `weight_bytes` are
    those of weights, `state_bytes` those of gradients and the optimizer, `activation_bytes` those that the forward pass
    keeps for the backward pass, `peak_bytes` the most at once, including states. `exchanges` are the collectives of
    tensor parallelism. `profile_s` is the duration of profiling, with compilation, on one device.
    """

    shard: StageShard
    device: str
    compute_s: Estimate
    update_s: Estimate
    parameters: int
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    peak_bytes: int
    exchanges: tuple[Exchange, ...]
    rounds: int
    profile_s: float
    torch: str
