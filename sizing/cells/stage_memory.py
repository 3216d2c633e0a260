"""The peak memory of one GPU of a stage while a pipeline runs, from the profile of one micro-batch."""

from __future__ import annotations

from typing import Literal

from sizing.base.estimate import Estimate
from sizing.cells.profiles.shards import ShardProfile
from sizing.memory.peak import guarded_bytes

Schedule = Literal["gpipe", "1f1b"]
"""gpipe: all forward passes, then all backward passes; 1f1b: each backward pass as soon as possible."""


def in_flight(schedule: Schedule, micro_batches: int, stages: int, stage: int) -> int:
    """Return the number of micro-batches whose activations a stage (from 0) holds at once.

    Without a pipeline, each micro-batch's backward pass follows its forward pass.
    """
    if stages == 1:
        return 1
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)


def gradient_bytes(profile: ShardProfile) -> int:
    """Return the bytes of gradients that replicas sum.

    A gradient has its weight's precision, at most fp32; buffers have none.
    """
    return min(profile.weight_bytes, 4 * profile.parameters)


def peak_of(profile: ShardProfile, held: int, replicas: int) -> Estimate:
    """Return the peak of one GPU with `held` micro-batches in flight; `high` is the memory that the GPU needs.

    `high` includes the guard band. DistributedDataParallel copies gradients into buckets as large as all of them; `low`
    excludes those.
    """
    stacked = profile.peak_bytes + (held - 1) * profile.activation_bytes
    buckets = gradient_bytes(profile) if replicas > 1 else 0
    peak = stacked + buckets
    measured = held == 1 and not buckets
    return Estimate(peak, stacked, guarded_bytes(peak), "measured" if measured else "formula")
