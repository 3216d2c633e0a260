"""Node classes: nodes that are alike for training, and the classes that a trainer may use. Pure.

Synchronous training runs at the pace of its slowest node, so a trainer's nodes are of one class unless it mixes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bftd.protocol.requirements import Requirements


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The `size` nodes of one class, in the pool or not: their GPUs by type, and their harvested partitions.

    `features` are those that all of its nodes have, `some_features` those that only some have. `cpus` are a node's.
    """

    name: str
    size: int
    gpus: Mapping[str, int]
    features: frozenset[str]
    some_features: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int = 0

    def meets(self, requirements: Requirements, partition: str) -> bool:
        """Whether the nodes of the class are what a trainer of `partition` ("" is any) asks for."""
        return self._in(partition) and self._has_gpus(requirements) and self.features.issuperset(requirements.features)

    def _in(self, partition: str) -> bool:
        return not (partition and self.partitions) or partition in self.partitions

    def _has_gpus(self, requirements: Requirements) -> bool:
        if any(self.gpus.get(name) for name in requirements.without):
            return False
        if not (requirements.gpu or requirements.gpus):
            return True
        count = self.gpus.get(requirements.gpu, 0) if requirements.gpu else sum(self.gpus.values())
        return count >= max(requirements.gpus, 1)


Classes = Mapping[str, NodeClass]


def usable(classes: Classes, requirements: Requirements, partition: str) -> tuple[str, ...]:
    """Return the names of the classes that a trainer may use."""
    return tuple(name for name, kind in classes.items() if kind.meets(requirements, partition))


def unmet(classes: Classes, requirements: Requirements, partition: str, nodes_min: int) -> str | None:
    """Return why no harvested node, idle or not, can ever serve a trainer, as a sentence; None if some can.

    Return None while no class is known, as before the first snapshot.
    """
    if not classes:
        return None
    names = usable(classes, requirements, partition)
    if names:
        sizes = [classes[name].size for name in names]
        most = sum(sizes) if requirements.mix else max(sizes)
        if most >= nodes_min or (len(classes) == 1 and requirements.modest):  # a pool of one class may get more nodes
            return None
        whose = "the nodes that it may use are" if requirements.mix else "its largest class of nodes has"
        hint = "" if requirements.mix or sum(sizes) < nodes_min else "; with mix it may use several classes"
        return f"it needs {nodes_min} nodes and {whose} {most}{hint}"
    where = (
        f" of partition {partition}" if partition and any(partition in c.partitions for c in classes.values()) else ""
    )
    known = ", ".join(sorted(classes))
    return f"no class of nodes{where} has {requirements}{_partly(classes, requirements)}: there are {known}"


def _partly(classes: Classes, requirements: Requirements) -> str:
    """Return a remark on a requested feature that only some nodes of a class have, "" if there is none."""
    for feature in requirements.features:
        if part := [name for name, kind in classes.items() if feature in kind.some_features]:
            return f" (some nodes of {' and '.join(part)} have {feature}, which [pool] class_features does not name)"
    return ""


def largest(names: Iterable[str], class_of: Mapping[str, str]) -> list[str]:
    """Return the nodes of the class that most of the given nodes are of; of equally large classes, the first."""
    by_class: dict[str, list[str]] = {}
    for name in names:
        by_class.setdefault(class_of.get(name, ""), []).append(name)
    return max(by_class.values(), key=len, default=[])
