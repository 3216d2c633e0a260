"""Simulated GPU clusters: the number of GPUs of each type, and the size of their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.inventory.gpus import CATALOGUE, GpuType
from sizing.inventory.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Pool:
    """All GPUs of a type. `per_node` of them are joined by the type's link, nodes by `network_bytes_s` each way."""

    gpu: GpuType
    gpus: int
    per_node: int
    network_bytes_s: float


_CX5, _CX6 = 1.25e10, 2.5e10  # 100 and 200 Gbit/s


def table1() -> dict[str, Pool]:
    """Return Crius's Table 1, 1,280 GPUs; A100 and V100 are taken to have NVLink (the table's sign is unreadable)."""
    rows = (
        ("a100-sxm-40gb", 80, 4, _CX5),
        ("a40", 160, 2, _CX5),
        ("a10", 160, 2, _CX6),
        ("v100-sxm-32gb", 20, 16, _CX5),
    )
    return {name: Pool(CATALOGUE[name], nodes * each, each, network) for name, nodes, each, network in rows}


def crius_testbed() -> dict[str, Pool]:
    """Return Crius's own 64 GPUs: 16 nodes with 2 A40, 16 nodes with 2 A10."""
    return {
        "a40": Pool(CATALOGUE["a40"], 32, 2, _CX5),
        "a10": Pool(CATALOGUE["a10"], 32, 2, _CX6),
    }


def of_inventory(inventory: Inventory) -> dict[str, Pool]:
    """Return a centre's own pools: each node once, even if it is in several partitions; slices (MIG) are left out.

    If a type is in different nodes, the smallest node and the slowest network count for all. Raises UsageError if
    nothing is left.
    """
    counts: dict[str, dict[str, int]] = {}
    network: dict[str, float] = {}
    for offer in inventory.offers:
        for group in offer.groups:
            if inventory.types[group.gpu_type].slice or not group.gpus:
                continue
            nodes = counts.setdefault(group.gpu_type, {})
            nodes.update({node: max(group.gpus, nodes.get(node, 0)) for node in group.nodes})
            known = network.get(group.gpu_type, group.network_bytes_s)
            network[group.gpu_type] = min(known, group.network_bytes_s)
    if not counts:
        raise UsageError("the inventory has no whole GPUs of a known type: correct it with bft size inventory --json")
    return {
        name: Pool(inventory.types[name], sum(nodes.values()), min(nodes.values()), network[name])
        for name, nodes in sorted(counts.items())
    }


def capacity(pools: Mapping[str, Pool]) -> dict[str, int]:
    """Return the GPUs by type, as policies see them."""
    return {name: pool.gpus for name, pool in pools.items()}
