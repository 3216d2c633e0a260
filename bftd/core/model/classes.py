"""Node classes: nodes that are alike for training, and the classes that a trainer may use. Pure.

Synchronous training runs at the pace of its slowest node, so a trainer's nodes are of one class unless it mixes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bftd.protocol.wish import Requirements


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

    def meets(self, wish: Requirements, partition: str) -> bool:
        """Whether the nodes of the class are what a trainer of `partition` ("" is any) asks for."""
        return self._in(partition) and self._has_gpus(wish) and self.features.issuperset(wish.features)

    def _in(self, partition: str) -> bool:
        return not (partition and self.partitions) or partition in self.partitions

    def _has_gpus(self, wish: Requirements) -> bool:
        if any(self.gpus.get(name) for name in wish.without):
            return False
        if not (wish.gpu or wish.gpus):
            return True
        count = self.gpus.get(wish.gpu, 0) if wish.gpu else sum(self.gpus.values())
        return count >= max(wish.gpus, 1)


Classes = Mapping[str, NodeClass]


def usable(classes: Classes, wish: Requirements, partition: str) -> tuple[str, ...]:
    """Return the names of the classes that a trainer may use."""
    return tuple(name for name, kind in classes.items() if kind.meets(wish, partition))


def unmet(classes: Classes, wish: Requirements, partition: str, nodes_min: int) -> str | None:
    """Return why no harvested node, idle or not, can ever serve a trainer, as a sentence; None if some can.

    Return None while no class is known, as before the first snapshot.
    """
    if not classes:
        return None
    names = usable(classes, wish, partition)
    if names:
        sizes = [classes[name].size for name in names]
        most = sum(sizes) if wish.mix else max(sizes)
        if most >= nodes_min or (len(classes) == 1 and wish.modest):  # a pool of one class may get more nodes
            return None
        whose = "the nodes that it may use are" if wish.mix else "its largest class of nodes has"
        hint = "" if wish.mix or sum(sizes) < nodes_min else "; with mix it may use several classes"
        return f"it needs {nodes_min} nodes and {whose} {most}{hint}"
    where = (
        f" of partition {partition}" if partition and any(partition in c.partitions for c in classes.values()) else ""
    )
    return f"no class of nodes{where} has {wish}{_partly(classes, wish)}: there are {', '.join(sorted(classes))}"


def _partly(classes: Classes, wish: Requirements) -> str:
    """Return a remark on a requested feature that only some nodes of a class have, "" if there is none."""
    for feature in wish.features:
        if part := [name for name, kind in classes.items() if feature in kind.some_features]:
            return f" (some nodes of {' and '.join(part)} have {feature}, which [pool] class_features does not name)"
    return ""


def largest(names: Iterable[str], class_of: Mapping[str, str]) -> list[str]:
    """Return the nodes of the class that most of the given nodes are of; of equally large classes, the first."""
    by_class: dict[str, list[str]] = {}
    for name in names:
        by_class.setdefault(class_of.get(name, ""), []).append(name)
    return max(by_class.values(), key=len, default=[])
