"""The GPUs of a pool that a job may have together: any part of one node, or several whole nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sizing.base.errors import UsageError
from sizing.inventory.pools import GpuPool


@dataclass(frozen=True, slots=True)
class GpuShape:
    """`per_node` GPUs on each of `nodes` nodes of a pool."""

    pool: GpuPool
    nodes: int
    per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """The GPUs in words: "4 x a100 in new"."""
        return f"{self.gpus} x {self.pool.gpu.name} in {self.pool.partition}"

    @property
    def request(self) -> tuple[str, str, str, int, int]:
        """The key of its request to Slurm, which does not see how a model is spread over the GPUs."""
        return self.pool.partition, self.pool.gpu.name, self.pool.gres_type, self.nodes, self.gpus

    @property
    def paid(self) -> int:
        """The number of GPUs that a job takes from others: whole nodes' if the partition is exclusive."""
        if not self.pool.exclusive:
            return self.gpus
        return self.nodes * max(group.gpus for group in self.pool.having(self.per_node))

    @property
    def possible(self) -> tuple[GpuShape, ...]:
        """The same shape with each type of GPU that a job may get in its pool."""
        return tuple(replace(self, pool=replace(self.pool, gpu=gpu, others=())) for gpu in self.pool.possible)

    @property
    def network_bytes_s(self) -> float:
        """Bandwidth of the slowest node that may be among them."""
        return min(group.network_bytes_s for group in self.pool.having(self.per_node))


def shapes(pool: GpuPool, max_gpus: int | None = None, *, cells: bool = False) -> Iterator[GpuShape]:
    """Yield all shapes of a pool, small ones first; of slices, which cannot communicate, a job has one.

    `cells` have powers of two of nodes and of GPUs: a whole node then gives the largest that it has. Raises UsageError
    for fewer than one GPU.
    """
    if max_gpus is not None and max_gpus < 1:
        raise UsageError(f"at most {max_gpus} GPUs: at least 1")
    whole = {1} if pool.gpu.slice else {_counts(group.gpus, cells)[-1] for group in pool.groups}
    found = [
        GpuShape(pool, nodes, per_node)
        for per_node in _counts(max(whole), cells)
        for nodes in _counts(pool.nodes(per_node), cells)
        if nodes == 1 or (per_node in whole and not pool.gpu.slice)
    ]
    for shape in sorted(found, key=lambda each: (each.gpus, each.nodes)):
        if max_gpus is None or shape.gpus <= max_gpus:
            yield shape


def stage_counts(shape: GpuShape, most: int | None = None) -> list[int]:
    """Return the numbers of pipeline stages for a shape: powers of two up to one GPU per stage."""
    return _counts(shape.gpus if most is None else min(most, shape.gpus), powers=True)


def _counts(most: int, powers: bool) -> list[int]:
    """Return 1 to `most`, or the powers of two among them."""
    return [1 << at for at in range(max(0, most).bit_length())] if powers else list(range(1, most + 1))
