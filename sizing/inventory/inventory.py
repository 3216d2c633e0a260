"""The GPUs of a centre, by node and partition, as read from Slurm or a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sizing.inventory import gpus as catalogue
from sizing.inventory.gpus import GpuType
from slurm_plugin.nodeset import fold
from slurm_plugin.read.types import Node, Partition

__all__ = ["GpuNodes", "GpuType", "Inventory", "PartitionOffer", "emptied", "from_slurm", "with_idle"]

# A node in another state, or with another flag, has no GPU for a job that would start now.
_TAKES_JOBS = frozenset({"IDLE", "MIXED"})
_HARMLESS = frozenset({"CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "POWERED_DOWN", "POWERING_UP"})


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """Equal nodes: the number and type of GPUs, the CPUs and the memory of each. `gres_type` is Slurm's type name.

    `idle` maps a node to its GPUs that no job has, `idle_cpus` and `idle_memory_bytes` to its free CPUs and memory; a
    node missing from one of them has all of it free. `network_bytes_s` is one node's bandwidth to another. If a node
    has GPUs of several types, a group has a share of its CPUs and memory in proportion to its GPUs of this type.
    """

    nodes: tuple[str, ...]
    gpu_type: str
    gpus: int
    cpus: int
    memory_bytes: int
    gres_type: str = ""
    features: tuple[str, ...] = ()
    network_bytes_s: float = 1.25e10
    idle: Mapping[str, int] = field(default_factory=dict)
    idle_cpus: Mapping[str, int] = field(default_factory=dict)
    idle_memory_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """A partition and the limits of a job there; in an `exclusive` one a job gets whole nodes."""

    partition: str
    groups: tuple[GpuNodes, ...]
    max_nodes: int | None = None
    max_time_s: float | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """All types of GPUs by name, and all partitions that have some; `unknown` names unrecognised types.

    `notes` are sentences on assumptions made, and on what to do about the unknown types; `closed` maps partitions that
    are left out because they are not up to their states.
    """

    types: Mapping[str, GpuType]
    offers: tuple[PartitionOffer, ...]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    closed: Mapping[str, str] = field(default_factory=dict, compare=False)


def from_slurm(
    nodes: Mapping[str, Node],
    partitions: Mapping[str, Partition],
    *,
    without: Collection[str] = (),
    types: Mapping[str, GpuType] | None = None,
) -> Inventory:
    """Return the partitions that are up and have GPUs, each with its groups of equal nodes; partitions may share nodes.

    `without` are partitions to leave out: those of bftd. `types` are the site's own GPU types; they precede the
    catalogue. A node's GPUs of a type unknown to both are left out and named in `unknown`.
    """
    reader = _Reader(types or {})
    offers, closed = [], {}
    for partition in partitions.values():
        if partition.name in without:
            continue
        there = [nodes[name] for name in partition.nodes if name in nodes]
        if partition.state != "UP":
            if any(node.gpus for node in there):
                closed[partition.name] = partition.state
            continue
        groups = reader.groups(there, exclusive=partition.exclusive)
        if groups:
            offers.append(
                PartitionOffer(partition.name, groups, partition.max_nodes, partition.max_time_s, partition.exclusive)
            )
    return Inventory(reader.types, tuple(offers), tuple(sorted(reader.unknown)), reader.notes(), closed)


def with_idle(inventory: Inventory, nodes: Mapping[str, Node]) -> Inventory:
    """Return the same inventory with what Slurm says is idle now; a node that Slurm does not know has nothing idle."""
    offers = []
    for offer in inventory.offers:
        groups = []
        for group in offer.groups:
            part = {name: _idle(nodes[name], group, exclusive=offer.exclusive) for name in group.nodes if name in nodes}
            groups.append(_with(group, {name: part.get(name, (0, 0, 0)) for name in group.nodes}))
        offers.append(replace(offer, groups=tuple(groups)))
    return replace(inventory, offers=tuple(offers))


def emptied(inventory: Inventory) -> Inventory:
    """Return the same inventory without any job on it."""
    offers = [replace(offer, groups=tuple(_with(group, {}) for group in offer.groups)) for offer in inventory.offers]
    return replace(inventory, offers=tuple(offers))


_Shape = tuple[str, str, int, int, int, tuple[str, ...]]  # type, gres, GPUs, CPUs, bytes, features


class _Reader:
    """A reader that groups nodes by their resources, and remembers every type that it met."""

    def __init__(self, own: Mapping[str, GpuType]) -> None:
        self.types: dict[str, GpuType] = {}
        self.unknown: dict[str, set[str]] = defaultdict(set)
        self._notes: dict[str, None] = {}
        self._own = {name: known for known in own.values() for name in (known.name, *known.names)}

    def groups(self, nodes: Iterable[Node], *, exclusive: bool) -> tuple[GpuNodes, ...]:
        """Return the groups of a partition, in the order of their first nodes."""
        alike: dict[_Shape, list[Node]] = defaultdict(list)
        for node in nodes:
            whole = sum(node.gpus.values())
            for gres_type, count in node.gpus.items():
                known = self._known(gres_type, node) if count else None
                if known is not None:
                    cpus, memory = node.cpus * count // whole, node.memory_bytes * count // whole
                    alike[known.name, gres_type, count, cpus, memory, node.features].append(node)
        return tuple(_group(shape, members, exclusive=exclusive) for shape, members in alike.items())

    def notes(self) -> tuple[str, ...]:
        """Return the assumptions made, and what to do about unknown types."""
        told = [
            f"nothing is known of the GPU type {name or 'without a name'} ({fold(nodes)}): name it in a file, as in "
            f'{{"types": {{"{name or "NAME"}": {{"like": "a100-sxm-80gb"}}}}}}'
            for name, nodes in sorted(self.unknown.items())
        ]
        return (*self._notes, *told)

    def _known(self, gres_type: str, node: Node) -> GpuType | None:
        found = self._own.get(gres_type)
        if found is None and (known := catalogue.recognise(gres_type, node.features)) is not None:
            found = self._own.get(known.type.name, known.type)
            if known.note:
                self._notes.setdefault(known.note)
        if found is None:
            self.unknown[gres_type].add(node.name)
        else:
            self.types.setdefault(found.name, found)
        return found


def _group(shape: _Shape, members: Collection[Node], *, exclusive: bool) -> GpuNodes:
    gpu_type, gres_type, gpus, cpus, memory_bytes, features = shape
    names = tuple(node.name for node in members)
    group = GpuNodes(names, gpu_type, gpus, cpus, memory_bytes, gres_type, features)
    return _with(group, {node.name: _idle(node, group, exclusive=exclusive) for node in members})


def _idle(node: Node, group: GpuNodes, *, exclusive: bool) -> tuple[int, int, int]:
    """Return the GPUs, CPUs and bytes of memory that a job could get on a node now; of an exclusive one all or none."""
    if node.state not in _TAKES_JOBS or not node.flags <= _HARMLESS or (exclusive and node.state != "IDLE"):
        return 0, 0, 0
    if group.gres_type:
        # Some clusters report how many GPUs are in use but not their type: they may be any.
        there = node.gpus.get(group.gres_type, 0)
        used = node.gpus_used.get(group.gres_type, 0) + node.gpus_used.get("", 0)
    else:
        there, used = sum(node.gpus.values()), sum(node.gpus_used.values())
    return (
        max(0, min(group.gpus, there) - used),
        min(group.cpus, max(0, node.cpus - node.cpus_used)),
        min(group.memory_bytes, max(0, node.memory_bytes - node.memory_used_bytes)),
    )


def _with(group: GpuNodes, idle: Mapping[str, tuple[int, int, int]]) -> GpuNodes:
    """Return the group with what is idle on each node; all of it for a node that is not in `idle`."""
    full = (group.gpus, group.cpus, group.memory_bytes)
    found = {name: idle.get(name, full) for name in group.nodes}
    return replace(
        group,
        idle={name: part[0] for name, part in found.items()},
        idle_cpus={name: part[1] for name, part in found.items() if part[1] != full[1]},
        idle_memory_bytes={name: part[2] for name, part in found.items() if part[2] != full[2]},
    )
