"""What a Slurm cluster consists of, as one snapshot shows it. All times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A compute node. `state` is Slurm's base state (IDLE, ALLOCATED, MIXED, DOWN, ...) without flags.

    `flags` holds the rest (PLANNED, DRAIN, COMPLETING, RESERVED, POWERED_DOWN, NOT_RESPONDING, ...) spelled in full.
    `gres` lists the node's GPUs the way a job asks for all of them ("gpu:a100:4"), and `gpus` counts them by type,
    with "" for a type without a name.
    """

    name: str
    state: str
    flags: frozenset[str]
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gres: str
    gpus: Mapping[str, int]
    cpus: int
    memory_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is on the network, as Slurm knows it: a name or an address, and what its host calls itself."""

    address: str
    host_name: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or the tasks of a job array that still wait ("12_[3-5]").

    `partition` has several names while a job that asked for them is pending. `sched_nodes` and, for a pending job,
    `start_s` are the scheduler's plan: None and () where it has none. `time_limit_s` is None without a limit. `account`
    is what Slurm charges, "" on a cluster without accounts.

    `unreadable` says what of a pending job could not be read. Such a job waits without a plan, for all that is known,
    and its `partition` is () where even that could not be read: it may need any node.
    """

    id: str
    user: str
    partition: tuple[str, ...]
    state: str
    name: str
    nodes: tuple[str, ...]
    sched_nodes: tuple[str, ...]
    start_s: float | None
    submit_s: float
    time_limit_s: float | None
    reason: str
    node_count: int
    comment: str
    dependency: str
    priority: int
    reservation: str
    account: str = ""
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of nodes, current or to come."""

    name: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    flags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; `max_time_s` is None where jobs may run for ever."""

    name: str
    nodes: tuple[str, ...]
    state: str
    max_time_s: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as read around `time_s`: every node by name, every job that is not over, every reservation."""

    time_s: float
    nodes: dict[str, Node]
    jobs: tuple[Job, ...]
    reservations: tuple[Reservation, ...]
