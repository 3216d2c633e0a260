"""The shards of a cell to profile: the two extremes of each stage, and a hybrid between them if it matters.

Crius samples data parallelism alone and tensor parallelism alone. In 17 of the 39 cells of Alpa's public search logs
both extremes run out of memory although a hybrid fits, so d = t = sqrt(N) is the third sample.
"""

from __future__ import annotations

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell, Stage
from sizing.cells.shards import StageShard

CLOSE = 0.15
"""If extremes differ by less than this share, they say little about the splits between them."""


def micro_batches_of(cell: Cell, global_batch: int, given: int | None = None) -> int:
    """Return the number of micro-batches that a global batch is cut into: the given one, else a default.

    The default is 4 per stage (GPipe, Crius), or 1 without a pipeline. It is smaller if the batch does not divide, so
    that every GPU of a stage can have samples of a micro-batch if possible. Raises UsageError if the given number does
    not divide the batch.
    """
    if global_batch < 1:
        raise UsageError(f"a global batch of {global_batch}: at least 1")
    if given is not None:
        if given < 1 or global_batch % given:
            raise UsageError(
                f"a global batch of {global_batch} cannot be cut into {given} micro-batches; choose a divisor of it"
            )
        return given
    most = 4 * len(cell.stages) if len(cell.stages) > 1 else 1
    widest = max(stage.gpus for stage in cell.stages)
    counts = [count for count in range(most, 0, -1) if global_batch % count == 0]
    return next((count for count in counts if global_batch // count % widest == 0), counts[0])


def more_micro_batches(cell: Cell, global_batch: int, count: int) -> int | None:
    """Return the next number of micro-batches to try if nothing fits with `count`: twice as many or a few more.

    Return None if replicas would get no samples, and for pipelines: GPipe holds the activations of all micro-batches at
    once, so more and smaller ones take as much memory.
    """
    if len(cell.stages) > 1:
        return None
    widest = max(stage.gpus for stage in cell.stages)
    fits = (more for more in range(2 * count, global_batch // widest + 1) if global_batch % more == 0)
    return next((more for more in fits if global_batch // more % widest == 0), None)


def splits_of(stage: Stage) -> tuple[Parallel, ...]:
    """Return all splits of a stage, from data parallelism alone to tensor parallelism alone."""
    found, tp = [], 1
    while tp <= stage.gpus:
        if stage.gpus % tp == 0:
            found.append(Parallel(stage.gpus // tp, tp))
        tp *= 2
    return tuple(found)


def hybrid_of(stage: Stage) -> Parallel | None:
    """Return the split in the middle: d = t = sqrt(N), or t = 2 d; None if there is none between the extremes."""
    splits = splits_of(stage)
    return splits[len(splits) // 2] if len(splits) > 2 else None


def shard_of(stage: Stage, split: Parallel, micro_batch: int) -> StageShard | None:
    """Return the shard that one GPU of a split runs; None if dp does not divide the micro-batch."""
    if micro_batch % split.dp:
        return None
    return StageShard(stage.first, stage.last, micro_batch // split.dp, split.tp)


def extremes_of(stage: Stage) -> tuple[Parallel, ...]:
    """Return data parallelism alone and tensor parallelism alone, which are the same on one GPU."""
    splits = splits_of(stage)
    return tuple(dict.fromkeys((splits[0], splits[-1])))


def wanted(
    cell: Cell, global_batch: int, *, micro_batches: int | None = None, tensor: bool = True, hybrids: bool = False
) -> tuple[StageShard, ...]:
    """Return the shards to profile first: both extremes of each stage, without duplicates.

    `tensor` is False for models without a plan for tensor parallelism; `hybrids` adds the third sample of every stage
    (once the extremes are known, sizing.cells.plan_estimate.hybrids returns those that are needed).
    """
    micro_batch = global_batch // micro_batches_of(cell, global_batch, micro_batches)
    found: dict[StageShard, None] = {}
    for stage in cell.stages:
        middle = hybrid_of(stage) if hybrids else None
        for split in (*extremes_of(stage), *([middle] if middle else [])):
            shard = shard_of(stage, split, micro_batch)
            if shard is not None and (tensor or split.tp == 1):
                found[shard] = None
    return tuple(found)
