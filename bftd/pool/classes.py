"""The class of each harvested node. Pure.

A class is a number of GPUs by type, and the features that the site names. Nodes that are alike in these are of several
classes if they differ in CPUs, in memory or in the harvested partitions that they are in. Memory differs if one node
has a tenth more than another: nodes of one purchase rarely show the same number of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from bftd.core.model.classes import NodeClass
from slurm_plugin.read.types import Node

# The part by which the memory of two nodes has to differ to matter.
_MEMORY_STEP = 0.1
_TRAITS = attrgetter("gres", "features", "cpus", "memory_bytes", "partitions")

# CPUs, least memory in bytes, harvested partitions.
_Build = tuple[int, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Classified:
    """The classes by name, and the class of each node. `traits` is the data they were made from."""

    classes: Mapping[str, NodeClass] = field(default_factory=dict)
    of_node: Mapping[str, str] = field(default_factory=dict)
    traits: object = None


def classify(
    nodes: Mapping[str, Node], features: Sequence[str], partitions: Sequence[str], before: Classified | None = None
) -> Classified:
    """Sort nodes into classes by the `features` that the site names; returns `before` if nothing has changed.

    `partitions` are the harvested ones, in the order of the configuration. A single one is not noted.
    """
    partitions = partitions if len(partitions) > 1 else ()
    traits = (tuple(features), tuple(partitions), dict(zip(nodes, map(_TRAITS, nodes.values()), strict=True)))
    if before is not None and before.traits == traits:
        return before
    groups: dict[str, list[Node]] = {}
    for node in nodes.values():
        groups.setdefault(_label(node, features), []).append(node)
    members: dict[str, list[Node]] = {}
    for label, group in groups.items():
        builds = dict(zip([node.name for node in group], _builds(group, partitions), strict=True))
        distinct = set(builds.values())
        for node in group:
            members.setdefault(_name(label, any(node.gpus.values()), builds[node.name], distinct), []).append(node)
    classes = {name: _class(name, members[name], partitions) for name in sorted(members)}
    return Classified(classes, {node.name: name for name, group in members.items() for node in group}, traits)


def reclassified(before: Classified, after: Classified) -> bool:
    """Whether any node that was known before is of another class now."""
    if after is before:
        return False
    return any(before.of_node.get(name, kind) != kind for name, kind in after.of_node.items())


def _label(node: Node, features: Sequence[str]) -> str:
    """Return the GPUs of a node and the features that matter; "" if it has neither."""
    gpus = [f"{kind or 'gpu'}x{count}" for kind, count in sorted(node.gpus.items()) if count]
    return "+".join((*gpus, *(name for name in features if name in node.features)))


def _builds(group: Sequence[Node], partitions: Sequence[str]) -> list[_Build]:
    """Return CPUs, memory and partitions of each node; about equal memories count as the least of them."""
    floors: dict[tuple[int, int], int] = {}
    for cpus in {node.cpus for node in group}:
        floor = 0
        for memory in sorted({node.memory_bytes for node in group if node.cpus == cpus}):
            if not floor or memory >= floor * (1 + _MEMORY_STEP):
                floor = memory
            floors[cpus, memory] = floor
    return [(node.cpus, floors[node.cpus, node.memory_bytes], _harvested(node, partitions)) for node in group]


def _harvested(node: Node, partitions: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in partitions if name in node.partitions)


def _name(label: str, has_gpus: bool, build: _Build, distinct: Iterable[_Build]) -> str:
    """Return the label, with the details that tell the class from others of that label.

    A node without GPUs is named by CPUs and memory. Examples: "a100x4", "a100x4+nvlink", "cpu64-251G",
    "a100x4-cpu64-503G", "v100x2-elastic2".
    """
    cpus, memory, partitions = build
    words = [label] if label else []
    if not has_gpus or len({other[:2] for other in distinct}) > 1:
        words.append(f"cpu{cpus}-{_size(memory)}")
    if len({other[2] for other in distinct}) > 1:
        words.append("+".join(partitions))
    return "-".join(words)


def _size(memory_bytes: int) -> str:
    return f"{memory_bytes >> 30}G" if memory_bytes >> 30 else f"{memory_bytes >> 20}M"


def _class(name: str, members: Sequence[Node], partitions: Sequence[str]) -> NodeClass:
    have = [frozenset(node.features) for node in members]
    common = frozenset.intersection(*have)
    return NodeClass(
        name=name,
        size=len(members),
        gpus=dict(members[0].gpus),
        features=common,
        some_features=frozenset.union(*have) - common,
        partitions=_harvested(members[0], partitions),
        cpus=members[0].cpus,
    )
