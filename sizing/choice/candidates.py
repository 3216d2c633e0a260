"""All ways to spread a step over the available GPUs, before its memory is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.choice.ran import Place
from sizing.choice.sources import RankBatch
from sizing.inventory.pools import GpuPool


@dataclass(frozen=True, slots=True)
class Spread:
    """The ways in which a model can be spread: the keywords that a make_step takes, or those a formula supports.

    Tensor parallelism splits the attention `heads`, None if unknown.
    """

    tensor: bool = False
    fsdp: bool = False
    heads: int | None = None


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
    if max_gpus is not None and max_gpus < 1:
        raise UsageError(f"at most {max_gpus} GPUs: at least 1")
    return tuple(
        Candidate(pool, nodes, parallel, parallel.batch_of(global_batch))
        for pool in pools
        for nodes, per_node in _shapes(pool, max_gpus)
        for parallel in _parallels(pool, nodes, per_node, spread)
        if global_batch % parallel.shares == 0
    )


def _shapes(pool: GpuPool, max_gpus: int | None) -> Iterator[tuple[int, int]]:
    """Yield (nodes, GPUs of each): any part of one node, or whole nodes."""
    if pool.gpu.slice:  # slices of GPUs cannot communicate
        yield 1, 1
        return
    sizes = sorted({group.gpus for group in pool.groups})
    for per_node in range(1, sizes[-1] + 1):
        if pool.nodes(per_node) and (max_gpus is None or per_node <= max_gpus):
            yield 1, per_node
    for per_node in sizes:
        most = pool.nodes(per_node) if max_gpus is None else min(pool.nodes(per_node), max_gpus // per_node)
        for nodes in range(2, most + 1):
            yield nodes, per_node


def _parallels(pool: GpuPool, nodes: int, per_node: int, spread: Spread) -> Iterator[Parallel]:
    tp = 1
    while tp <= per_node:
        whole = all(group.gpus % tp == 0 for group in pool.having(per_node))
        if per_node % tp == 0 and whole and (spread.heads is None or spread.heads % tp == 0):
            shares = nodes * per_node // tp
            yield Parallel(shares, tp)
            if spread.fsdp and shares > 1:
                yield Parallel(1, tp, shares)
                if nodes > 1 and per_node > tp:
                    yield Parallel(nodes, tp, per_node // tp)
        if not spread.tensor:
            return
        tp *= 2
