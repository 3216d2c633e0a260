"""What is profiled on one device: a stage's part of one rank, for one split and micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.estimate import Estimate


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Operators `first` to `last` as one of `tp` tensor-parallel ranks runs them on `batch` samples.

    Data parallelism makes `batch` smaller, nothing else: the shard of dp replicas has 1/dp of the micro-batch.
    """

    first: int
    last: int
    batch: int
    tp: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """`calls` collectives of one kind in a forward and backward pass of a shard, of `bytes` each.

    `kind` is all_reduce, all_gather, reduce_scatter, all_to_all or broadcast; `bytes` is the size of the whole tensor,
    that of the gathered one for all_gather and reduce_scatter, as nccl-tests counts it.
    """

    kind: str
    bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class ShardProfile:
    """A forward and backward pass of a shard, without its collectives, on one device.

    `device` names the device's type: a GPU type of the inventory's catalogue, or "cpu". `compute_s` is the median over
    `rounds`, its low and high the 95 % confidence interval of it; `update_s` the optimizer's step. `weight_bytes` are
    the weights', `state_bytes` those of gradients and the optimizer, `activation_bytes` what the pass leaves alive for
    its backward pass, `peak_bytes` the most at once, states included. `exchanges` are of tensor parallelism.
    `profile_s` is how long making it took, compilation included, on one device.
    """

    shard: Shard
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
