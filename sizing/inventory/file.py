"""An inventory as a JSON file that an administrator can read and correct, converted without loss in both directions.

`types` describes the GPUs and `partitions` their places. A type that the catalogue knows by its name, or by the one in
`like`, needs only the fields that differ; those no longer count as assumed. Without `partitions` a file corrects what
Slurm shows. Nodes are folded as Slurm writes them, n[1-4].
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sizing.base.errors import UsageError
from sizing.base.json_fields import Fields, decoded
from sizing.inventory.gpus import PRECISIONS, Checked, GpuType, recognise
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from slurm_plugin.nodeset import fold

_RATES = ("memory_bytes_s", "link_bytes_s", "cost")
_CORRECTED = ("memory_bytes", "flops", *_RATES, "link")
_TYPE = frozenset({"like", "names", "slice", "assumed", "checked", *_CORRECTED})
_KINDS = frozenset({"host", "memory", "fp64", *PRECISIONS})  # as returned by cost.bound_by
_CHECKED = frozenset(field.name for field in fields(Checked))
_GROUP = frozenset(field.name for field in fields(GpuNodes))
_OFFER = frozenset(field.name for field in fields(PartitionOffer))
_IDLE = ("idle", "idle_cpus", "idle_memory_bytes")
_LEAST_RATIO = 1e-6  # of times: no GPU is so much faster than its data sheet
_MOST_GPUS = 1024  # per node: more than any node has; plans are made for every number of them
_FEWEST_LINK_BYTES_S = 1.6e10  # PCI Express 3 with 16 lanes: the slowest link between GPUs still in use


def to_json(inventory: Inventory) -> dict[str, Any]:
    """Return the form of `bft size inventory --json`."""
    return {
        "types": {name: _type_json(known) for name, known in inventory.types.items()},
        "partitions": [
            {
                "partition": offer.partition,
                "max_nodes": offer.max_nodes,
                "max_time_s": offer.max_time_s,
                "exclusive": offer.exclusive,
                "groups": [_group_json(group) for group in offer.groups],
            }
            for offer in inventory.offers
        ],
        "unknown": list(inventory.unknown),
        "notes": list(inventory.notes),
    }


def text_of(inventory: Inventory) -> str:
    """Return the text of the file."""
    return json.dumps(to_json(inventory), indent=2)


def parse(text: str, *, name: str = "the inventory") -> Inventory:
    """Read the text of such a file called `name`; raise UsageError with the place of a fault and what to write."""
    whole = Fields(name, decoded(text, name), frozenset({"format", "types", "partitions", "unknown", "notes"}))
    types = {key: _type(Fields(f"{name}, types, {key}", item, _TYPE), key) for key, item in whole.items("types")}
    offers = tuple(_offer(item, types) for item in whole.each("partitions", _OFFER))
    seen: set[str] = set()
    for offer in offers:
        if offer.partition in seen:
            raise UsageError(f"{name}: partition {offer.partition} is there twice: remove one")
        seen.add(offer.partition)
    return Inventory(types, offers, whole.texts("unknown", plain=False), whole.texts("notes", plain=False))


def _type_json(known: GpuType) -> dict[str, Any]:
    shown: dict[str, Any] = {
        **({"like": known.like} if known.like else {}),
        "memory_bytes": known.memory_bytes,
        "flops": dict(known.flops),
        **{key: getattr(known, key) for key in _RATES},
        "link": known.link,
        "assumed": sorted(known.assumed),
    }
    if known.names:
        shown["names"] = list(known.names)
    if known.slice:
        shown["slice"] = True
    if known.checked:
        shown["checked"] = {kind: asdict(each) for kind, each in known.checked.items()}
    return shown


def _group_json(group: GpuNodes) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "nodes": fold(group.nodes),
        "gpu_type": group.gpu_type,
        "gres_type": group.gres_type,
        "gpus": group.gpus,
        "cpus": group.cpus,
        "memory_bytes": group.memory_bytes,
        "features": list(group.features),
        "network_bytes_s": group.network_bytes_s,
    }
    for key in _IDLE:
        by_count: dict[int, list[str]] = defaultdict(list)
        for node, count in getattr(group, key).items():
            by_count[count].append(node)
        if by_count or key == "idle":
            shown[key] = {fold(nodes): count for count, nodes in by_count.items()}
    return shown


def _type(given: Fields, name: str) -> GpuType:
    """Return one type: the given fields override the catalogue's."""
    like = given.text("like", name)
    known = recognise(like)
    if known is None and "like" in given:
        raise given.wrong("like", "a type that the catalogue knows, as a100-sxm-80gb")
    if known is not None and known.note and "like" not in given and "memory_bytes" not in given:
        raise UsageError(f"{known.note}; write it as like in types, {name}")
    base = known.type if known is not None else None
    flops = dict(base.flops) if base else {}
    if "flops" in given:
        rates = given.inner("flops", frozenset(PRECISIONS))
        flops.update({key: rates.number(key, least=1.0) for key, _ in given.items("flops")})
    if not flops:
        raise given.wrong("flops", f"operations a second by precision ({', '.join(PRECISIONS)}), or like")
    slowest = min(flops.values())
    flops = {precision: flops.get(precision, slowest) for precision in PRECISIONS}
    values: dict[str, Any] = {
        "memory_bytes": given.count("memory_bytes", base.memory_bytes if base else None, least=1),
        "flops": flops,
        "memory_bytes_s": given.number("memory_bytes_s", base.memory_bytes_s if base else None, least=1.0),
        "link_bytes_s": given.number("link_bytes_s", base.link_bytes_s if base else _FEWEST_LINK_BYTES_S, least=1.0),
        "cost": given.number("cost", base.cost if base else 1.0),
        "link": given.text("link", base.link if base else "pcie"),
    }
    return GpuType(
        name=name,
        **values,
        assumed=_assumed(given, values, base),
        names=given.texts("names"),
        slice=given.flag("slice", bool(base and base.slice)),
        like=base.name if base is not None and "like" in given else "",
        checked=_checked(given),
    )


def _checked(given: Fields) -> dict[str, Checked]:
    if "checked" not in given:
        return {}
    found, kinds = {}, given.inner("checked", _KINDS)
    for kind, _ in given.items("checked"):
        each = kinds.inner(kind, _CHECKED)
        low, value, high = (each.number(key, least=_LEAST_RATIO) for key in ("low", "value", "high"))
        if not low <= value <= high:
            raise each.wrong("value", "a number from low to high")
        found[kind] = Checked(each.count("steps", least=1), low, value, high)
    return found


def _assumed(given: Fields, values: Mapping[str, Any], base: GpuType | None) -> frozenset[str]:
    """Return the fields that the site has not confirmed: those that the file lists as assumed, unless they differ."""
    if base is not None:
        told = given.texts("assumed") if "assumed" in given else _CORRECTED
        return frozenset(key for key in told if values.get(key) == getattr(base, key, None))
    if "assumed" in given:
        return frozenset(given.texts("assumed"))
    return frozenset(key for key in _CORRECTED if key not in given)


def _offer(given: Fields, types: dict[str, GpuType]) -> PartitionOffer:
    groups = tuple(_group(item, types) for item in given.each("groups", _GROUP))
    seen: set[tuple[str, str]] = set()
    for group in groups:
        for node in group.nodes:
            if (node, group.gres_type) in seen:
                raise UsageError(f"{given.where}: {node} is in two groups with the same GPUs: take it out of one")
            seen.add((node, group.gres_type))
    most = given.number_or_none("max_nodes", least=1)
    return PartitionOffer(
        given.word("partition"),
        groups,
        None if most is None else int(most),
        given.number_or_none("max_time_s", least=1.0),
        given.flag("exclusive", False),
    )


def _group(given: Fields, types: dict[str, GpuType]) -> GpuNodes:
    """Read a group; idle counts that are not given are all of it. Catalogue types need not be in the file."""
    gpu_type = given.text("gpu_type")
    if gpu_type not in types:
        known = recognise(gpu_type)
        if known is None or known.type.name != gpu_type:
            raise given.wrong("gpu_type", f"one of the file's types ({', '.join(types) or 'it has none'})")
        types[gpu_type] = known.type
    nodes = given.nodes("nodes")
    if not nodes:
        raise given.wrong("nodes", "at least one node")
    gpus, cpus = given.count("gpus", least=1), given.count("cpus")
    if gpus > _MOST_GPUS:
        raise given.wrong("gpus", f"a whole number from 1 to {_MOST_GPUS}, of each node")
    memory_bytes = given.count("memory_bytes")
    idle: Mapping[str, int] = given.counts_by_node("idle", nodes, gpus)
    return GpuNodes(
        nodes=nodes,
        gpu_type=gpu_type,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        gres_type=given.word("gres_type", ""),
        features=given.words("features"),
        network_bytes_s=given.number("network_bytes_s", 1.25e10, least=1.0),
        idle={node: idle.get(node, gpus) for node in nodes},
        idle_cpus=given.counts_by_node("idle_cpus", nodes, cpus),
        idle_memory_bytes=given.counts_by_node("idle_memory_bytes", nodes, memory_bytes),
    )
