"""The GPUs of one type in one partition that a job can ask for: the basis of plans.

Slurm tells GPUs apart by the type of a gres and, if two models share a type, only by a feature of their nodes. A job
that can name neither may get either model, so the smaller memory counts.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sizing.base.errors import SizingError, UsageError
from sizing.inventory.inventory import GpuNodes, GpuType, Inventory, PartitionOffer


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Nodes of a partition that have the same type of GPU and may differ in all else.

    `gpu_bytes` is the memory that a job can rely on. `constraint` is the feature that excludes other GPUs of the same
    gres type, "" if none is needed; `mixed` names the types that a job may get instead if there is no such feature.
    `others` are the known ones of these: all of a job runs at the pace of the slowest. In an `exclusive` partition a
    job has whole nodes. No job runs longer than `max_time_s`, None for no limit.
    """

    partition: str
    gpu: GpuType
    groups: tuple[GpuNodes, ...]
    gpu_bytes: int
    max_nodes: int | None = None
    constraint: str = ""
    mixed: tuple[str, ...] = ()
    exclusive: bool = False
    max_time_s: float | None = None
    others: tuple[GpuType, ...] = ()

    @property
    def possible(self) -> tuple[GpuType, ...]:
        """The types that a job may get, the intended one first."""
        return (self.gpu, *self.others)

    @property
    def gres_type(self) -> str:
        """The name of the type in Slurm's gres, "" if it has none."""
        return self.groups[0].gres_type

    def having(self, per_node: int) -> tuple[GpuNodes, ...]:
        """Return the groups whose nodes have at least `per_node` GPUs."""
        return tuple(group for group in self.groups if group.gpus >= per_node)

    def nodes(self, per_node: int) -> int:
        """Return the number of nodes with at least `per_node` GPUs that a job may have."""
        there = sum(len(group.nodes) for group in self.having(per_node))
        return there if self.max_nodes is None else min(there, self.max_nodes)


def pools(inventory: Inventory) -> Iterator[GpuPool]:
    """Yield all pools, in the order of the inventory; GPUs of unknown types make none."""
    for offer in inventory.offers:
        kinds: dict[tuple[str, str], list[GpuNodes]] = {}
        for group in offer.groups:
            if group.gpus > 0 and group.nodes and group.gpu_type in inventory.types:
                kinds.setdefault((group.gpu_type, group.gres_type), []).append(group)
        for (name, gres_type), groups in kinds.items():
            others = [group for group in offer.groups if group.gpu_type != name and _mistaken(gres_type, group)]
            yield _pool(inventory, offer, name, groups, others)


def _mistaken(gres_type: str, other: GpuNodes) -> bool:
    """Whether a job that asks for a type may get another group's GPUs: --gres=gpu:1 takes any."""
    return other.gpus > 0 and gres_type in ("", other.gres_type)


def _pool(
    inventory: Inventory, offer: PartitionOffer, name: str, groups: Sequence[GpuNodes], others: Sequence[GpuNodes]
) -> GpuPool:
    gpu = inventory.types[name]
    constraint = _constraint(groups, others) if others else ""
    mixed = tuple(sorted({group.gpu_type for group in others})) if others and not constraint else ()
    # an unknown type cannot be compared; the administrator is told to name it
    known = tuple(inventory.types[other] for other in mixed if other in inventory.types)
    return GpuPool(
        offer.partition,
        gpu,
        tuple(groups),
        min(each.memory_bytes for each in (gpu, *known)),
        offer.max_nodes,
        constraint,
        mixed,
        offer.exclusive,
        offer.max_time_s,
        known,
    )


def _constraint(groups: Sequence[GpuNodes], others: Sequence[GpuNodes]) -> str:
    """Return the shortest feature that all these nodes have and none of the others."""
    shared = set.intersection(*(set(group.features) for group in groups))
    found = shared.difference(*(group.features for group in others))
    return min(found, key=lambda name: (len(name), name), default="")


def within(everything: Sequence[GpuPool], partitions: Collection[str], gpu_type: str) -> tuple[GpuPool, ...]:
    """Return the pools that the user allows; raises UsageError for an unknown name."""
    if not everything:
        raise SizingError("no partition that is up has GPUs of a known type; bft size inventory shows what there is")
    for name in partitions:
        _refuse_unknown("partition with GPUs", name, {pool.partition for pool in everything})
    kinds = {name for pool in everything for name in (pool.gpu.name, pool.gres_type) if name}
    if gpu_type:
        _refuse_unknown("GPU type", gpu_type, kinds)
    found = tuple(
        pool
        for pool in everything
        if (not partitions or pool.partition in partitions) and gpu_type in ("", pool.gpu.name, pool.gres_type)
    )
    if not found:
        where = ", ".join(partitions)
        raise UsageError(f"no {gpu_type} in partition {where}; bft size inventory shows which GPUs are where")
    return found


def _refuse_unknown(what: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    same = [each for each in known if each.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    raise UsageError(f"no {what} {name}: {hint}")
