"""The nodes as configured by the site, by partition, feature and size: what stays from poll to poll. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from bftd.pool.backfill.model import Numbering
from bftd.pool.backfill.sizes import NodeSize, NodeSizes
from slurm_plugin.read.types import Node

T = TypeVar("T")
P = ParamSpec("P")

# Of one node: partitions, features, CPUs, memory and GPUs; None for a missing node.
_Kind = tuple[tuple[str, ...], tuple[str, ...], int, int, tuple[tuple[str, int], ...]] | None


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The nodes of a `Numbering` as sets: by partition, by feature, and by size.

    Two layouts are never equal, so that results for one are looked up by it at no cost.
    """

    numbering: Numbering
    by_partition: Mapping[str, int]
    by_feature: Mapping[str, int]
    sizes: NodeSizes
    # Results for this layout, by function: they go with the layout, thousands of which a long-running daemon sees.
    known: dict[str, dict[Any, Any]] = field(default_factory=dict, repr=False)

    def mask(self, names: tuple[str, ...]) -> int:
        """Return the set of some nodes, cached: the same few thousand sets are asked for at every poll."""
        return _mask(self, names) if names else 0


def remembered(most: int) -> Callable[[Callable[Concatenate[Layout, P], T]], Callable[Concatenate[Layout, P], T]]:
    """Have a function of a layout remember up to `most` results for the lifetime of the layout."""

    def remember(function: Callable[Concatenate[Layout, P], T]) -> Callable[Concatenate[Layout, P], T]:
        name = f"{function.__module__}.{function.__qualname__}"

        @wraps(function)
        def answer(layout: Layout, /, *asked: P.args, **named: P.kwargs) -> T:
            if named:  # positional arguments are faster, and the only ones cached
                return function(layout, *asked, **named)
            known: dict[Any, T] = layout.known.setdefault(name, {})
            if asked in known:
                return known[asked]
            if len(known) >= most:
                known.clear()
            found = known[asked] = function(layout, *asked, **named)
            return found

        return answer

    return remember


def layout_of(nodes: Mapping[str, Node], numbering: Numbering) -> Layout:
    """Return the layout of some nodes; the same one as before while the site has changed nothing."""
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
            sizes.append(NodeSize(bit, cpus, memory_bytes, dict(gpus)))
            by_names[partitions, features] = by_names.get((partitions, features), 0) | bit
    by_partition: dict[str, int] = {}
    by_feature: dict[str, int] = {}
    for (partitions, features), mask in by_names.items():
        for partition in partitions:
            by_partition[partition] = by_partition.get(partition, 0) | mask
        for feature in features:
            by_feature[feature] = by_feature.get(feature, 0) | mask
    return Layout(numbering, by_partition, by_feature, NodeSizes.of(sizes))


@remembered(1 << 12)
def _mask(layout: Layout, names: tuple[str, ...]) -> int:
    return layout.numbering.mask(names)
