"""Nodes in use that can take a job beside the others. Pure.

Such a job can start there, and no node is earmarked for it. A site shares out memory if any job has some: where Slurm
counts memory at all, a job that names no memory has all of a node's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bftd.pool.backfill.model import Numbering
from bftd.pool.backfill.sizes import NodeDemand, NodeSize, NodeSizes
from bftd.pool.fitness import HARMLESS_FLAGS
from slurm_plugin.read.types import Node


@dataclass(frozen=True, eq=False, slots=True)
class SharedNodes:
    """The free parts of the nodes in use; on those of `whole_memory` no job has any memory.

    `counts_memory` says that a job has some memory somewhere.
    """

    free: NodeSizes
    whole_memory: int
    counts_memory: bool

    @classmethod
    def of(cls, nodes: Mapping[str, Node], numbering: Numbering) -> SharedNodes:
        """Return the shares of all nodes that Slurm shows as MIXED and that are otherwise fit."""
        sizes = []
        whole_memory = 0
        for name, node in nodes.items():
            bit = numbering.bit.get(name, 0)
            if node.state != "MIXED" or not bit or not node.flags <= HARMLESS_FLAGS:
                continue
            if not node.memory_used_bytes:
                whole_memory |= bit
            free_bytes = node.memory_bytes - node.memory_used_bytes
            sizes.append(NodeSize(bit, node.cpus - node.cpus_used, free_bytes, _free_gpus(node)))
        return cls(NodeSizes.of(sizes), whole_memory, any(node.memory_used_bytes for node in nodes.values()))

    def holding(self, ask: NodeDemand) -> int:
        """Return the nodes in use that have free what a job asks of each."""
        mask = self.free.holding(ask)
        return mask if ask.memory_bytes > 0 else mask & self.whole_memory

    def together(self, ask: NodeDemand, fits: int) -> int:
        """Return how many jobs fit on an idle node whose CPUs, GPUs and memory, if asked for, suffice for `fits`."""
        return fits if ask.memory_bytes > 0 or not self.counts_memory else 1


def _free_gpus(node: Node) -> Mapping[str, int]:
    """Return the GPUs of a node that no job has, by type; GPUs in use of unknown type are subtracted from each type."""
    if not node.gpus_used:
        return node.gpus
    untold = sum(count for kind, count in node.gpus_used.items() if kind not in node.gpus)
    return {kind: max(0, count - node.gpus_used.get(kind, 0) - untold) for kind, count in node.gpus.items()}
