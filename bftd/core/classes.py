"""Node classes: nodes that are alike for training, and which of them a trainer may use. Pure.

Synchronous training runs at the pace of its slowest node, so a trainer's nodes are of one class unless it mixes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bftd.protocol.wish import Wish


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The `size` nodes of one class, in the pool or not: their GPUs by type, and the harvested partitions they are in.

    `features` are those that all of its nodes have, `some_features` those that only some have. `cpus` are a node's.
    """

    name: str
    size: int
    gpus: Mapping[str, int]
    features: frozenset[str]
    some_features: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int = 0

    def meets(self, wish: Wish, partition: str) -> bool:
        """Whether any node of the class is what a trainer of `partition` ("" is any) asks for."""
        return self._in(partition) and self._has_gpus(wish) and self.features.issuperset(wish.features)

    def _in(self, partition: str) -> bool:
        return not (partition and self.partitions) or partition in self.partitions

    def _has_gpus(self, wish: Wish) -> bool:
        if any(self.gpus.get(name) for name in wish.without):
            return False
        if not (wish.gpu or wish.gpus):
            return True
        count = self.gpus.get(wish.gpu, 0) if wish.gpu else sum(self.gpus.values())
        return count >= max(wish.gpus, 1)


Classes = Mapping[str, NodeClass]


def usable(classes: Classes, wish: Wish, partition: str) -> tuple[str, ...]:
    """The names of the classes that a trainer may use."""
    return tuple(name for name, kind in classes.items() if kind.meets(wish, partition))


def unmet(classes: Classes, wish: Wish, partition: str, nodes_min: int) -> str | None:
    """Why no harvested node, idle or not, can ever serve a trainer, as a sentence; None where some can.

    Where no class is known, as before the first snapshot, nothing is said.
    """
    if not classes:
        return None
    names = usable(classes, wish, partition)
    if names:
        sizes = [classes[name].size for name in names]
        most = sum(sizes) if wish.mix else max(sizes)
        if most >= nodes_min or (len(classes) == 1 and wish.modest):  # nodes may be added to a pool of one class
            return None
        whose = "the nodes that it may use are" if wish.mix else "its largest class of nodes has"
        hint = "" if wish.mix or sum(sizes) < nodes_min else "; with mix it may use several classes"
        return f"it needs {nodes_min} nodes and {whose} {most}{hint}"
    where = (
        f" of partition {partition}" if partition and any(partition in c.partitions for c in classes.values()) else ""
    )
    return f"no class of nodes{where} has {wish}{_partly(classes, wish)}: there are {', '.join(sorted(classes))}"


def _partly(classes: Classes, wish: Wish) -> str:
    """A remark on a feature that parts of classes have."""
    for feature in wish.features:
        if part := [name for name, kind in classes.items() if feature in kind.some_features]:
            return f" (some nodes of {' and '.join(part)} have {feature}, which [pool] class_features does not name)"
    return ""


def largest(names: Iterable[str], class_of: Mapping[str, str]) -> list[str]:
    """Those of some nodes that are of the class which most of them are of, the first such class."""
    by_class: dict[str, list[str]] = {}
    for name in names:
        by_class.setdefault(class_of.get(name, ""), []).append(name)
    return max(by_class.values(), key=len, default=[])
