"""What GPUs a centre has, on which nodes and in which partitions, as Slurm or a file says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuType:
    """One model of GPU. `memory_bytes` is what a program can have of it; bandwidths are bytes a second, one way.

    `flops` is the peak of dense matrix products a second by precision ("fp32", "tf32", "fp16", "bf16"). `link_bytes_s`
    joins the GPUs of a node, `cost` is what an hour of it is worth beside other types (any unit). `assumed` names the
    fields that come from data sheets and not from the site.
    """

    name: str
    memory_bytes: int
    flops: Mapping[str, float]
    memory_bytes_s: float
    link_bytes_s: float
    link: str = "pcie"
    cost: float = 1.0
    assumed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike: how many GPUs of which type, CPUs and memory each has. `gres_type` is Slurm's name of it.

    `idle` maps a node to its GPUs that no job has; `network_bytes_s` is one node's bandwidth to another.
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


@dataclass(frozen=True, slots=True)
class Offer:
    """A partition and what a job may have there."""

    partition: str
    groups: tuple[NodeGroup, ...]
    max_nodes: int | None = None
    max_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All types of GPUs by name, and all partitions that have some; `unknown` names types of which nothing is known."""

    types: Mapping[str, GpuType]
    offers: tuple[Offer, ...]
    unknown: tuple[str, ...] = ()
