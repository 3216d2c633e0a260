"""Layouts: a job on GPUs of a pool, with the division of its model and its samples over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel, Place, RankBatch
from sizing.inventory.pools import GpuPool
from sizing.inventory.shapes import GpuShape, shapes


@dataclass(frozen=True, slots=True)
class Spread:
    """The ways in which a model can be spread: the keywords that a make_step takes, or those a formula supports.

    Tensor parallelism splits the attention `heads`, None if unknown.
    """

    tensor: bool = False
    fsdp: bool = False
    heads: int | None = None

    def tensor_groups(self, most: int) -> Iterator[int]:
        """Yield the sizes of tensor-parallel groups of up to `most` GPUs: powers of two that divide the heads."""
        tp = 1
        while tp <= most and (tp == 1 or self.tensor):
            if self.heads is None or self.heads % tp == 0:
                yield tp
            tp *= 2


@dataclass(frozen=True, slots=True)
class Layout:
    """A job on the GPUs of a `shape`, whose stages are divided by `splits`, in the order of the pipeline.

    `global_batch` is the samples of a step on all GPUs; each rank processes its part of it in `micro_batches`.
    """

    shape: GpuShape
    splits: tuple[Parallel, ...]
    global_batch: int
    micro_batches: int = 1

    @property
    def partition(self) -> str:
        """The partition with the GPUs."""
        return self.shape.pool.partition

    @property
    def gpu_type(self) -> str:
        """The type of the GPUs."""
        return self.shape.pool.gpu.name

    @property
    def gpu_bytes(self) -> int:
        """The memory of a GPU."""
        return self.shape.pool.gpu_bytes

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.shape.gpus

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.shape.nodes

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len(self.splits)

    @property
    def parallel(self) -> Parallel:
        """The division of the first stage's GPUs: of all, without a pipeline."""
        return self.splits[0]

    @property
    def batch(self) -> int:
        """Samples of a step on one rank of the first stage."""
        return self.global_batch // self.parallel.shares

    @property
    def micro_batch(self) -> int:
        """The part of these samples that is processed at once."""
        return self.batch // self.micro_batches

    @property
    def point(self) -> RankBatch:
        """The work of one rank, without a pipeline."""
        return RankBatch(self.parallel, self.batch)

    @property
    def place(self) -> Place:
        """The GPUs and the work of each, without a pipeline."""
        return self.gpu_type, self.gpus, self.nodes, self.point

    @property
    def spread(self) -> str:
        """The stages, and dp and tp of each, in words: "2 stages, dp 4, tp 1, 8 micro-batches"."""
        parts = [f"{self.stages} stages"] if self.stages > 1 else []
        for name in ("dp", "tp"):
            sizes = [getattr(split, name) for split in self.splits]
            if name == "dp" or max(sizes) > 1:
                parts.append(f"{name} {sizes[0] if len(set(sizes)) == 1 else '/'.join(map(str, sizes))}")
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro-batches")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLayout(Layout):
    """A layout with the time and memory of its step.

    `step_s` is a step of the whole global batch, `peak` the bytes of one GPU of the fullest stage, its `high` with the
    guard band. `runs` earlier jobs on exactly these GPUs gave the figures; their processes used at most `host_bytes` of
    a node, None if none of them reported it.
    """

    step_s: Estimate
    peak: Estimate
    runs: int = 0
    host_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the step fits a GPU, with the guard band."""
        return self.peak.high <= self.gpu_bytes


def layouts(
    pools: Iterable[GpuPool], global_batch: int, spread: Spread, max_gpus: int | None = None
) -> tuple[Layout, ...]:
    """Return every spread of a global batch in equal whole parts over up to `max_gpus` GPUs, without pipelines.

    Several nodes are used whole. A tensor-parallel group is a power of two, stays within a node and divides its GPUs.
    Raises UsageError for sizes below 1.
    """
    if global_batch < 1:
        raise UsageError(f"a global batch of {global_batch}: at least 1")
    return tuple(
        Layout(shape, (parallel,), global_batch)
        for pool in pools
        for shape in shapes(pool, max_gpus)
        for parallel in _parallels(shape, spread)
        if global_batch % parallel.shares == 0
    )


def _parallels(shape: GpuShape, spread: Spread) -> Iterator[Parallel]:
    having = shape.pool.having(shape.per_node)
    for tp in spread.tensor_groups(shape.per_node):
        if shape.per_node % tp == 0 and all(group.gpus % tp == 0 for group in having):
            shares = shape.gpus // tp
            yield Parallel(shares, tp)
            if spread.fsdp and shares > 1:
                yield Parallel(1, tp, shares)
                if shape.nodes > 1 and shape.per_node > tp:
                    yield Parallel(shape.nodes, tp, shape.per_node // tp)
