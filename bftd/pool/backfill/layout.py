"""The nodes as the site has made them, by partition, feature and size: what does not change from poll to poll. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from bftd.pool.backfill.sizes import Size, Sizes
from bftd.pool.backfill.wanted import Numbering
from slurm_plugin.types import Node

# Of one node: partitions, features, CPUs, memory and GPUs; None for one that is not there.
_Kind = tuple[tuple[str, ...], tuple[str, ...], int, int, tuple[tuple[str, int], ...]] | None


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The nodes of a `Numbering` as sets: by partition, by feature, and by what they have.

    Two of them are never equal, so that what was worked out for one is looked up by it at no cost.
    """

    numbering: Numbering
    by_partition: Mapping[str, int]
    by_feature: Mapping[str, int]
    sizes: Sizes

    def mask(self, names: tuple[str, ...]) -> int:
        """The set of some nodes, remembered: the same few thousand sets are asked for at every poll."""
        return _mask(self, names) if names else 0


def layout_of(nodes: Mapping[str, Node], numbering: Numbering) -> Layout:
    """The layout of some nodes; the same one as before while the site has changed nothing."""
    return _layout(numbering.names, tuple([_kind(nodes.get(name)) for name in numbering.names]))


def _kind(node: Node | None) -> _Kind:
    if node is None:
        return None
    gpus = tuple(node.gpus.items()) if node.gpus else ()
    return node.partitions, node.features, node.cpus, node.memory_bytes, gpus


@lru_cache(maxsize=2)  # those of this poll and of the one before
def _layout(names: tuple[str, ...], kinds: tuple[_Kind, ...]) -> Layout:
    numbering = Numbering.of(names)
    by_names: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    sizes = []
    for name, kind in zip(names, kinds, strict=True):
        if kind is not None:
            partitions, features, cpus, memory_bytes, gpus = kind
            bit = numbering.bit[name]
            sizes.append(Size(bit, cpus, memory_bytes, dict(gpus)))
            by_names[partitions, features] = by_names.get((partitions, features), 0) | bit
    by_partition: dict[str, int] = {}
    by_feature: dict[str, int] = {}
    for (partitions, features), mask in by_names.items():
        for partition in partitions:
            by_partition[partition] = by_partition.get(partition, 0) | mask
        for feature in features:
            by_feature[feature] = by_feature.get(feature, 0) | mask
    return Layout(numbering, by_partition, by_feature, Sizes.of(sizes))


@lru_cache(maxsize=1 << 12)
def _mask(layout: Layout, names: tuple[str, ...]) -> int:
    return layout.numbering.mask(names)
