"""What a Slurm cluster consists of, as one snapshot shows it. All times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """A compute node. `state` is Slurm's base state (IDLE, ALLOCATED, MIXED, DOWN, ...) without flags.

    `flags` holds the rest (PLANNED, DRAIN, COMPLETING, RESERVED, POWERED_DOWN, NOT_RESPONDING, ...) spelled in full.
    `gres` lists the node's GPUs the way a job asks for all of them ("gpu:a100:4"), and `gpus` counts them by type,
    with "" for a type without a name. `memory_bytes` are those that jobs can have. `weight` is the site's: Slurm takes
    nodes of less weight first. What jobs have of the node now is `cpus_used`, `memory_used_bytes` and `gpus_used`.
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
    weight: int = 1
    cpus_used: int = 0
    memory_used_bytes: int = 0
    gpus_used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is on the network, as Slurm knows it: a name or an address, and what its host calls itself."""

    address: str
    host_name: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for beside a number of nodes.

    `features` is its constraint as Slurm writes it, `required` and `excluded` are nodes by name. `least_s` is the
    shortest time limit that it takes (TimeMin), None where that is its limit. An `exclusive` job shares its nodes with
    nobody; of another one `cpus` counts in all, `cpus_per_node` and `memory_bytes` on each node (a CPU, where
    `memory_per_cpu`), `gres` on each node as --gres takes it. Of a job that runs, `cpus` are those that it has.
    `switches` is the most leaf switches, 0 for any number.
    """

    features: str = ""
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    contiguous: bool = False
    least_s: float | None = None
    exclusive: bool = True
    cpus: int = 0
    cpus_per_node: int = 0
    memory_bytes: int = 0
    memory_per_cpu: bool = False
    gres: str = ""
    switches: int = 0


NO_REQUEST = Request()


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
    request: Request = NO_REQUEST


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
    """A partition; `max_time_s` is None where jobs may run for ever.

    `priority_tier` comes before the jobs' own priorities, None where it could not be read. In an `exclusive` partition
    no job shares a node; `max_nodes` is the most that one may have, None for any number.
    """

    name: str
    nodes: tuple[str, ...]
    state: str
    max_time_s: float | None
    priority_tier: int | None = None
    exclusive: bool = False
    max_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """How far a backfill cycle came that began at `begun_s`: it `looked` at so many of the lines that were `queued`.

    Each task of an array that it tried counts, and no line that a limit kept back or whose job had started meanwhile.
    """

    begun_s: float
    looked: int
    queued: int


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How the site's backfill scheduler works: Slurm's defaults, but for what was `read` from the controller.

    A cycle begins `interval_s` after the last one ended and looks `depth` jobs deep (bf_max_job_test), at most so many
    of a user, of a partition and of a user in a partition (0: any number), and of the waiting tasks of an array
    (bf_max_job_array_resv). It plans in steps of `resolution_s` (bf_resolution), `window_s` ahead (bf_window), by the
    rules of 24.11 where it is so new (`newer`). Jobs younger than `reserve_age_s` or below `reserve_priority` get no
    plan. `cycle_s` is how long the last cycle took, with what it slept as far as that follows from the settings, and
    `cycled_s` when it ended; None where sdiag does not say, as while one works. The controller's clock is `behind_s`
    behind this host's at most, 0 where it may be right. `depths` are the last few cycles that are over.
    """

    read: bool = False
    interval_s: float = 30.0
    resolution_s: float = 60.0
    window_s: float = 86400.0
    depth: int = 500
    depth_user: int = 0
    depth_partition: int = 0
    depth_user_partition: int = 0
    array_most: int = 20
    one_plan_a_job: bool = False
    reserve_age_s: float = 0.0
    reserve_priority: int = 0
    max_time_s: float = 30.0
    newer: bool = False
    cycle_s: float | None = None
    cycled_s: float | None = None
    behind_s: float = 0.0
    depths: tuple[Depth, ...] = ()

    @property
    def reached(self) -> Depth | None:
        """How far the deepest of the last cycles came in the longest of their queues; None where that is not known.

        One cycle alone that ended early may have been a short one.
        """
        if sum(one.looked < one.queued for one in self.depths) < 2:
            return None
        looked, queued = max(one.looked for one in self.depths), max(one.queued for one in self.depths)
        return Depth(self.depths[-1].begun_s, looked, queued)

    @property
    def due_s(self) -> float | None:
        """Before when no cycle begins; None where that is not known."""
        return None if self.cycled_s is None else self.cycled_s + self.interval_s


NO_SCHEDULER = Scheduler()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as read around `time_s`: every node by name, every job that is not over, every reservation.

    `partitions` by name and the `scheduler` are read more rarely; without them nothing is known of either. Its reading
    began at `begun_s`, None where that is not told: what came later may be missing.
    """

    time_s: float
    nodes: dict[str, Node]
    jobs: tuple[Job, ...]
    reservations: tuple[Reservation, ...]
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    scheduler: Scheduler = NO_SCHEDULER
    begun_s: float | None = None
