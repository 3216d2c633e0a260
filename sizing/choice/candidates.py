"""All ways to spread a step over the available GPUs, before its memory is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.choice.ran import Place
from sizing.choice.sources import RankBatch
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
class Candidate:
    """Some GPUs of a pool and a spread over them; `batch` is the number of samples of one rank."""

    pool: GpuPool
    nodes: int
    parallel: Parallel
    batch: int

    @property
    def place(self) -> Place:
        """The GPUs, and the work of each."""
        return self.pool.gpu.name, self.parallel.gpus, self.nodes, RankBatch(self.parallel, self.batch)


def candidates(
    pools: Iterable[GpuPool], global_batch: int, spread: Spread, max_gpus: int | None = None
) -> tuple[Candidate, ...]:
    """Return every spread of a global batch in equal whole parts over up to `max_gpus` GPUs.

    Several nodes are used whole. A tensor-parallel group is a power of two, stays within a node and divides its GPUs.
    Raises UsageError for sizes below 1.
    """
    if global_batch < 1:
        raise UsageError(f"a global batch of {global_batch}: at least 1")
    return tuple(
        Candidate(pool, shape.nodes, parallel, parallel.batch_of(global_batch))
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
