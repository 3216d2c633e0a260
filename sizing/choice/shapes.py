"""The numbers of GPUs that a cell may have: powers of two, on as few nodes as hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sizing.base.errors import UsageError
from sizing.inventory.pools import GpuPool


@dataclass(frozen=True, slots=True)
class GpuShape:
    """`per_node` GPUs on each of `nodes` nodes of a pool, both powers of two."""

    pool: GpuPool
    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.per_node

    @property
    def possible(self) -> tuple[GpuShape, ...]:
        """The same shape with each type of GPU that a job may get in its pool."""
        return tuple(replace(self, pool=replace(self.pool, gpu=gpu, others=())) for gpu in self.pool.possible)

    @property
    def network_bytes_s(self) -> float:
        """Bandwidth of the slowest node that may be among them."""
        return min(group.network_bytes_s for group in self.pool.having(self.per_node))


def shapes(pool: GpuPool, max_gpus: int | None = None) -> Iterator[GpuShape]:
    """Yield all shapes of a pool, small ones first; several nodes give the largest power of two of their GPUs each.

    Raises UsageError for fewer than one GPU.
    """
    if max_gpus is not None and max_gpus < 1:
        raise UsageError(f"at most {max_gpus} GPUs: at least 1")
    sizes = sorted({_power(group.gpus) for group in pool.groups})
    found: set[tuple[int, int]] = set()
    for per_node in _powers(1 if pool.gpu.slice else sizes[-1]):  # slices of GPUs cannot communicate
        most = pool.nodes(per_node) if per_node in sizes and not pool.gpu.slice else min(1, pool.nodes(per_node))
        found |= {(nodes, per_node) for nodes in _powers(most)}
    for nodes, per_node in sorted(found, key=lambda each: (each[0] * each[1], each)):
        if max_gpus is None or nodes * per_node <= max_gpus:
            yield GpuShape(pool, nodes, per_node)


def stage_counts(shape: GpuShape, most: int | None = None) -> tuple[int, ...]:
    """Return the numbers of pipeline stages for a shape: powers of two up to one GPU per stage."""
    return tuple(_powers(shape.gpus if most is None else min(most, shape.gpus)))


def _power(count: int) -> int:
    """Return the largest power of two up to a count of at least 1."""
    return 1 << (count.bit_length() - 1)


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2
