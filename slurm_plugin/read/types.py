"""The parts of a Slurm cluster, as one snapshot shows them. All times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """A compute node. `state` is Slurm's base state (IDLE, ALLOCATED, MIXED, DOWN, ...) without flags.

    `flags` holds the rest (PLANNED, DRAIN, COMPLETING, RESERVED, POWERED_DOWN, NOT_RESPONDING, ...) spelled in full.
    `gres` lists the node's GPUs as a job asks for all of them ("gpu:a100:4"), and `gpus` counts them by type, with ""
    for a type without a name. `memory_bytes` is the memory that jobs can have. `weight` is set by the site: Slurm takes
    nodes of less weight first. `cpus_used`, `memory_used_bytes` and `gpus_used` are in use by jobs now.
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
    """The network address of a node, as Slurm knows it: a name or an address, and its host's own name."""

    address: str
    host_name: str


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job's request beside its number of nodes.

    `features` is its constraint in Slurm's syntax, `required` and `excluded` are node names. `least_s` is the shortest
    time limit that it accepts (TimeMin), None if that is its limit. An `exclusive` job shares its nodes with no other
    job. For another job, `cpus` counts in total, `cpus_per_node` and `memory_bytes` per node (per CPU with
    `memory_per_cpu`), and `gres` per node in the syntax of --gres. For a running job, `cpus` are those that it has.
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


NO_REQUEST = JobRequest()


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or the waiting tasks of a job array ("12_[3-5]").

    `partition` has several names while a job that asked for them is pending. `sched_nodes` and, for a pending job,
    `start_s` are the scheduler's plan: () and None without one. `time_limit_s` is None without a limit. `account` is
    the account that Slurm charges, "" on a cluster without accounts. An `expedited` job was requeued and comes before
    all others (--requeue=expedite, since 25.11).

    `unreadable` says which part of a pending job could not be read. Such a job is assumed to wait without a plan. Its
    `partition` is () if even that could not be read: it may need any node.
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
    expedited: bool = False
    request: JobRequest = NO_REQUEST


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
    """A partition; `max_time_s` is None if jobs may run for ever.

    `priority_tier` comes before the jobs' own priorities, None if it could not be read. In an `exclusive` partition no
    job shares a node; `max_nodes` is the most nodes of a job, None for any number. Only users of the `groups` may use
    it, all users if none is named.
    """

    name: str
    nodes: tuple[str, ...]
    state: str
    max_time_s: float | None
    priority_tier: int | None = None
    exclusive: bool = False
    max_nodes: int | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a backfill cycle that began at `begun_s`: it `looked` at that many of the `queued` lines.

    Each array task that it tried counts, but no line that a limit held back or whose job had started meanwhile.
    """

    begun_s: float
    looked: int
    queued: int


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The site's backfill scheduler: Slurm's defaults, replaced by settings `read` from the controller.

    A cycle begins `interval_s` after the last one ended and looks `depth` jobs deep (bf_max_job_test), at most
    `depth_user`, `depth_partition` and `depth_user_partition` of a user, of a partition and of a user in a partition
    (0: any number), and at most `array_most` waiting tasks of an array (bf_max_job_array_resv). It plans in steps of
    `resolution_s` (bf_resolution), `window_s` ahead (bf_window), with `newer` by the rules of 24.11, with
    `by_chosen_ends` by those of 25.05.1 for the time of a start, and with `one_by_order` by those of 26.05 for jobs of
    one node. Jobs younger than `reserve_age_s` or below `reserve_priority` get no plan. `cycle_s` is the length of the
    last completed cycle, including its sleep as far as the settings tell; `cycled_s` is its end, None while another is
    at work. Both are None if sdiag does not show them. The controller's clock is at most `behind_s` behind this host's,
    0 if it may be right. `depths` are of the last few cycles; one still at work is among them only if it is the
    deepest.
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
    by_chosen_ends: bool = False
    one_by_order: bool = False
    cycle_s: float | None = None
    cycled_s: float | None = None
    behind_s: float = 0.0
    depths: tuple[Depth, ...] = ()

    @property
    def reached(self) -> Depth | None:
        """The depth of the deepest of the last cycles and the longest of their queues; None unless two stopped short.

        A single cycle that ended early may have been an exception.
        """
        if sum(one.looked < one.queued for one in self.depths) < 2:
            return None
        looked, queued = max(one.looked for one in self.depths), max(one.queued for one in self.depths)
        return Depth(self.depths[-1].begun_s, looked, queued)

    @property
    def due_s(self) -> float | None:
        """The time before which no cycle begins; None if unknown."""
        return None if self.cycled_s is None else self.cycled_s + self.interval_s


NO_SCHEDULER = Scheduler()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as read around `time_s`: every node by name, every job that is not over, every reservation.

    `partitions` by name and the `scheduler` are read more rarely, and are unknown until then. Reading began at
    `begun_s`, None if that is not known: later changes may be missing.
    """

    time_s: float
    nodes: dict[str, Node]
    jobs: tuple[Job, ...]
    reservations: tuple[Reservation, ...]
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    scheduler: Scheduler = NO_SCHEDULER
    begun_s: float | None = None
