"""The idle GPUs on which a plan could run now: the placement of Frenzy (HAS, Algorithm 1), corrected.

The GPUs chosen for a plan are always of one type in one partition, on each node a whole number of tensor-parallel
groups, no more than is idle there. Every plan that can be placed so is placed:

1. Plans are tried from the best on; for each the types of GPU that hold its peak, from the smallest memory on.
2. A plan that says how many GPUs of each node it asks Slurm for gets them so if possible, on the fullest nodes.
3. If the rest of the plan fits on one node, the fullest such node takes it.
4. Otherwise the node with the most usable GPUs gives all of it, leaves the candidates, and the rest goes back to 3.
   So no placement has fewer nodes.

As printed, the algorithm passes over the GPUs that fit best (">"), counts GPUs of several types for one plan, never
drops a node that it has emptied, and goes on if no plan was found.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sizing.base.errors import UsageError
from sizing.base.json_fields import Fields, decoded
from sizing.inventory.gpus import GIB, GpuType
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from sizing.memory.peak import guarded_bytes


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request for a placement: `gpus` GPUs with `need_bytes` each, in groups of `tp` on one node.

    A non-empty `partition` or `gpu_type` is the only one allowed. `per_node` is the number of GPUs of each node that
    the plan's own lines ask Slurm for, 0 for any number. `cpus` and `memory_bytes` go with each GPU; None is the GPU's
    share of its node.
    """

    gpus: int
    need_bytes: int
    tp: int = 1
    partition: str = ""
    gpu_type: str = ""
    per_node: int = 0
    cpus: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.tp < 1 or self.gpus % self.tp:
            raise UsageError(f"{self.gpus} GPUs in groups of {self.tp}: give whole groups, at least one")


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of the plan of this `index`: its nodes, in the order in which they were taken, with GPUs of each."""

    index: int
    partition: str
    gpu_type: str
    gres_type: str
    nodes: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the form of `bft size place --json`."""
        return {
            "plan": self.index + 1,
            "partition": self.partition,
            "gpu_type": self.gpu_type,
            "gres_type": self.gres_type,
            "nodes": dict(self.nodes),
        }


@dataclass(frozen=True, slots=True)
class NotPlaceable:
    """The reason why a plan cannot be placed, as half a sentence.

    `lacking` is the number of idle GPUs it lacks, None if more of them would not help.
    """

    index: int
    why: str
    lacking: int | None = None


@dataclass(slots=True)
class _Pool:
    """The GPUs of one name in one partition; `usable` maps a kind of plan to the usable GPUs of each node."""

    offer: PartitionOffer
    type: GpuType
    gres_type: str
    groups: list[GpuNodes] = field(default_factory=list)
    usable: dict[tuple[int, int | None, int | None], dict[str, int]] = field(default_factory=dict)


def parse(text: str, *, name: str = "the plans") -> tuple[PlacementRequest, ...]:
    """Return the requests of the plans in a file, best first; raise UsageError with the place and what to write there.

    Only the fields that a placement needs are read: gpus, tp, partition, gpu_type, nodes, and high_bytes, or peak_bytes
    to which the guard band is added.
    """
    whole = Fields(name, decoded(text, name))
    found = tuple(map(_ask, whole.each("plans")))
    if not found:
        raise whole.wrong("plans", "at least one plan: bft size fit --json writes them")
    return found


def _ask(plan: Fields) -> PlacementRequest:
    gpus, tp = plan.count("gpus", least=1), plan.count("tp", 1, least=1)
    if gpus % tp:
        raise plan.wrong("gpus", f"a multiple of tp={tp}")
    if "dp" in plan and gpus != plan.count("dp", least=1) * tp * plan.count("fsdp", 1, least=1):
        raise plan.wrong("gpus", "dp x tp x fsdp")
    nodes = plan.count("nodes", 0)
    if "high_bytes" in plan:
        need_bytes = plan.count("high_bytes", least=1)
    else:
        need_bytes = guarded_bytes(
            plan.count("peak_bytes", least=1), "formula" if plan.text("origin", "") == "formula" else "traced"
        )
    return PlacementRequest(
        gpus=gpus,
        need_bytes=need_bytes,
        tp=tp,
        partition=plan.text("partition", ""),
        gpu_type=plan.text("gpu_type", ""),
        per_node=gpus // nodes if nodes and gpus % nodes == 0 else 0,
    )


def place(asks: Sequence[PlacementRequest], inventory: Inventory) -> Placement | None:
    """Return the first plan that can be placed, and where; None if none can. The arguments are not changed."""
    found = [*trial(asks, inventory)][-1:]
    return found[0] if found and isinstance(found[0], Placement) else None


def trial(asks: Sequence[PlacementRequest], inventory: Inventory) -> Iterator[Placement | NotPlaceable]:
    """Yield the refusal of each plan passed over, then the placement of the first that can be placed."""
    pools = list(_pools(inventory))
    for index, ask in enumerate(asks):
        answer = _placed(index, ask, pools)
        yield answer
        if isinstance(answer, Placement):
            return


def check(asks: Sequence[PlacementRequest], inventory: Inventory) -> None:
    """Raise UsageError for a partition or type of GPU that a plan names and the inventory does not have."""
    partitions = [offer.partition for offer in inventory.offers]
    for index, ask in enumerate(asks):
        _known(index, "partition", ask.partition, partitions)
        _known(index, "GPU type", ask.gpu_type, inventory.types)


def _known(index: int, what: str, name: str, known: Collection[str]) -> None:
    if name and name not in known:
        same = [each for each in known if each.lower() == name.lower()]
        near = same or difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"
        raise UsageError(f"plan {index + 1}: no {what} {name} in the inventory: {hint}")


def _pools(inventory: Inventory) -> Iterator[_Pool]:
    """Yield all GPUs that a job could have together, from the smallest memory on, the fastest of equal ones first."""
    found: dict[tuple[int, str, str], _Pool] = {}
    for at, offer in enumerate(inventory.offers):
        for group in offer.groups:
            known = inventory.types.get(group.gpu_type)
            if known is not None:
                key = (at, group.gpu_type, group.gres_type)
                found.setdefault(key, _Pool(offer, known, group.gres_type)).groups.append(group)
    order = {key: (pool.type.memory_bytes, -_speed(pool.type), *key[1:], key[0]) for key, pool in found.items()}
    yield from (found[key] for key in sorted(found, key=order.__getitem__))


def _speed(known: GpuType) -> float:
    return max(known.flops.values(), default=0.0)


def _placed(index: int, ask: PlacementRequest, pools: Sequence[_Pool]) -> Placement | NotPlaceable:
    """Return the place of one plan in the first pool that has one, or the refusal of the pool that lacks least."""
    named = [
        pool for pool in pools if ask.partition in ("", pool.offer.partition) and ask.gpu_type in ("", pool.type.name)
    ]
    if not named:
        kind = f" of type {ask.gpu_type}" if ask.gpu_type else ""
        where = f" in partition {ask.partition}" if ask.partition else ""
        return NotPlaceable(index, f"needs GPUs{kind}{where}, and there are none")
    large = [pool for pool in named if pool.type.memory_bytes >= ask.need_bytes]
    if not large:
        best = max(named, key=lambda pool: pool.type.memory_bytes).type
        short = ask.need_bytes - best.memory_bytes
        why = f"needs {_gib(ask.need_bytes)} a GPU: {_gib(short)} more than {best.name} has"
        return NotPlaceable(index, why)
    refusals = []
    for pool in large:
        nodes = _chosen(ask, pool)
        if isinstance(nodes, dict):
            return Placement(index, pool.offer.partition, pool.type.name, pool.gres_type, nodes)
        refusals.append(NotPlaceable(index, *nodes))
    return min(refusals, key=lambda refusal: (refusal.lacking is None, refusal.lacking or 0))


def _chosen(ask: PlacementRequest, pool: _Pool) -> dict[str, int] | tuple[str, int | None]:
    """Return GPUs by node, or the reason why there are not enough, with the number that is lacking."""
    where = f"{pool.type.name} in {pool.offer.partition}"
    if pool.type.slice and ask.gpus > 1:
        return f"needs {ask.gpus} GPUs, and {where} are slices, of which a job has one", None
    largest = max(group.gpus for group in pool.groups)
    if ask.tp > largest:
        return f"needs {ask.tp} GPUs of one node (tp={ask.tp}); a node of {where} has {largest}", None
    usable = _usable(ask, pool)
    most = pool.offer.max_nodes
    chosen = _evenly(ask, usable, most) or _best_fit(ask.gpus, usable)
    if chosen is not None and (most is None or len(chosen) <= most):
        return chosen
    idle, there = sum(usable.values()), sum(len(group.nodes) * group.gpus for group in pool.groups)
    groups = f" in whole groups of {ask.tp} on a node" if ask.tp > 1 else ""
    if chosen is None:
        return f"needs {ask.gpus} GPUs; of {there} {where} {idle} can be had now{groups}", ask.gpus - idle
    reach = sum(sorted(usable.values(), reverse=True)[:most])
    return f"needs {len(chosen)} nodes of {where} now, and a job there has {most} at most", ask.gpus - reach


def _usable(ask: PlacementRequest, pool: _Pool) -> dict[str, int]:
    """Return the GPUs of each node that the plan can have, in whole tensor-parallel groups; omit nodes without any."""
    key = (ask.tp, ask.cpus, ask.memory_bytes)
    if key not in pool.usable:
        found: dict[str, int] = {}
        for group in pool.groups:
            found.update(_usable_in(group, *key))
        pool.usable[key] = found
    return pool.usable[key]


def _usable_in(group: GpuNodes, tp: int, cpus: int | None, memory_bytes: int | None) -> Iterator[tuple[str, int]]:
    """Yield the same for one group: each GPU takes its CPUs and memory with it."""
    cpus = group.cpus // group.gpus if cpus is None else cpus
    memory_bytes = group.memory_bytes // group.gpus if memory_bytes is None else memory_bytes
    for node in group.nodes:
        gpus = group.idle.get(node, group.gpus)
        if cpus:
            gpus = min(gpus, group.idle_cpus.get(node, group.cpus) // cpus)
        if memory_bytes:
            gpus = min(gpus, group.idle_memory_bytes.get(node, group.memory_bytes) // memory_bytes)
        if whole := gpus // tp * tp:
            yield node, whole


def _evenly(ask: PlacementRequest, usable: Mapping[str, int], most: int | None) -> dict[str, int] | None:
    """Return as many GPUs of each node as the plan's own lines ask for, on the nodes with the fewest usable ones."""
    if not ask.per_node or ask.gpus % ask.per_node or ask.per_node % ask.tp:
        return None
    count = ask.gpus // ask.per_node
    fits = sorted((node for node in usable if usable[node] >= ask.per_node), key=usable.__getitem__)
    return dict.fromkeys(fits[:count], ask.per_node) if count <= min(len(fits), most or count) else None


def _best_fit(gpus: int, usable: Mapping[str, int]) -> dict[str, int] | None:
    """Return the best fitting node if one suffices, else the emptiest first; None if all together have too few.

    `usable` counts whole groups, and so does the rest of `gpus` at any time.
    """
    if sum(usable.values()) < gpus:
        return None
    emptiest = sorted(usable, key=usable.__getitem__, reverse=True)  # of equal ones the first stays in front
    chosen: dict[str, int] = {}
    at = 0
    while usable[emptiest[at]] < gpus:
        node = emptiest[at]
        chosen[node] = usable[node]
        gpus -= usable[node]
        at += 1
    last = min((node for node in emptiest[at:] if usable[node] >= gpus), key=usable.__getitem__)
    chosen[last] = gpus
    return chosen


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
