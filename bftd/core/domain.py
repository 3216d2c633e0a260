"""The words of the decision core: pool, trainers, leases, and the events and actions of `bftd.core.step`.

Everything here is immutable. Times are unix seconds and come in on events; the core has no clock of its own.
Three sets are never mixed up: *planned* (what the last plan wants), *requested* (leases granted and not revoked) and
*observed* (leases whose pilot Slurm shows running).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bftd.core.learn import Knowledge

Phase = Literal["granted", "placed", "ready", "working", "leaving"]
TrainerState = Literal["waiting", "running", "suspended", "finished"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core decides by: the [decide] and [limits] sections, and what it enforces of [pool] and [slurm].

    Jobs of the users in `spared` are never cancelled for want of a lease.
    """

    t_fwd_s: float = 120.0
    objective: str = "throughput"
    pj_max: int = 10
    solver: str = "auto"
    solve_time_limit_s: float = 1.0
    stale_after_s: float = 10.0
    quarantine_s: float = 300.0
    quarantine_after: int = 3
    pilot_limit_s: float = 3600.0
    give_back_bound_s: float = 5.0
    submit_rate_per_min: int = 600
    nodes_per_user: int = 0
    nodes_per_account: int = 0
    trainers_per_user: int = 0
    trainers_per_account: int = 0
    operator: bool = False
    spared: frozenset[str] = frozenset({"root"})


@dataclass(frozen=True, slots=True)
class PoolNode:
    """One node of the harvested partition as the last snapshot shows it.

    `window_s` is the time until Slurm plans to use the node (None: nothing planned); `wanted` is true when a regular
    job has the node or is about to get it; `pilot` is the job id of our pilot that runs there.
    """

    name: str
    state: str
    in_pool: bool
    why: str
    window_s: float | None = None
    wanted: bool = False
    pilot: str | None = None
    gres: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A running job of the harvested partition: a pilot, or what a user started there himself."""

    id: str
    user: str
    account: str
    nodes: tuple[str, ...]
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """The node pool at one snapshot: the paper's N, with the reason for every node that is not in it.

    `version` counts changes of the pool's membership, `hold` is the sentence that forbids growing, `pilots` maps the
    job ids running in the preemptible partition to their nodes, `owners` those of them that a driver started to its
    trainer, and `job_ids` holds every job that Slurm knows. `elastic` has the running jobs of the preemptible partition
    by id, and `accounts` says for the jobs that have an account whose they are, (user, account).
    """

    version: int = 0
    time_s: float = float("-inf")
    hold: str | None = None
    nodes: Mapping[str, PoolNode] = field(default_factory=dict)
    pilots: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    job_ids: frozenset[str] = frozenset()
    elastic: Mapping[str, ElasticJob] = field(default_factory=dict)
    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def seen(self) -> bool:
        """Whether any snapshot was read since the daemon started."""
        return self.time_s > float("-inf")


@dataclass(frozen=True, slots=True)
class Lease:
    """The grant of one node to one trainer; its id, `node.sequence`, never comes back.

    `asked_back_s` is when Slurm first needed the node (start of the give-back), `missed_polls` counts snapshots in a
    row that do not show the pilot after it was placed, the first of them at `missed_s`.
    """

    id: str
    node: str
    trainer: str
    granted_s: float
    limit_s: float
    reason: str
    gres: str = ""
    gpus: int = 0
    phase: Phase = "granted"
    job_id: str | None = None
    placed_s: float | None = None
    revoked_s: float | None = None
    vacate: bool = False
    asked_back_s: float | None = None
    observed: bool = False
    missed_polls: int = 0
    missed_s: float | None = None
    alarmed: bool = False

    @property
    def live(self) -> bool:
        """Whether the trainer may keep the node."""
        return self.revoked_s is None


@dataclass(frozen=True, slots=True)
class Trainer:
    """One elastic training job (the paper's j) with all that its driver said about it.

    `epoch` fences older drivers, `version` counts changes of its lease list, `strays` are leases that its driver
    holds but the daemon does not know, listed as revoked until the driver has ended them. `account` is what Slurm
    shows, never what a driver says; "" while it is not known.
    """

    id: str
    name: str
    user: str
    backend: str
    nodes_min: int
    nodes_max: int
    arrived_s: float
    knowledge: Knowledge
    sizes: tuple[int, ...] | None = None
    weight: float = 1.0
    partition: str = ""
    workers_per_node: int | None = None
    epoch: int = 1
    version: int = 1
    state: TrainerState = "waiting"
    heard_s: float = 0.0
    step: int = 0
    samples: float = 0.0
    samples_per_s: float = 0.0
    loss: float | None = None
    resizes: int = 0
    suspends: int = 0
    steps_lost: int = 0
    exit_code: int | None = None
    finished_s: float | None = None
    refused_rounds: int = 0
    refused_round_s: float = float("-inf")
    no_growth_until_s: float = float("-inf")
    said: str = ""
    strays: tuple[Lease, ...] = ()
    account: str = ""

    @property
    def active(self) -> bool:
        """Whether the trainer still wants nodes."""
        return self.state != "finished"

    def allows(self, nodes: int) -> bool:
        """Whether the trainer can run on that many nodes (0 always)."""
        if nodes == 0:
            return True
        in_range = self.nodes_min <= nodes <= self.nodes_max
        return in_range and (self.sizes is None or nodes in self.sizes)

    def largest_allowed(self, nodes: int) -> int:
        """The largest allowed size not above `nodes`."""
        most = min(nodes, self.nodes_max)
        if self.sizes is not None:
            most = max((size for size in self.sizes if size <= most), default=0)
        return most if most >= self.nodes_min else 0

    def next_allowed(self, nodes: int) -> int:
        """The smallest allowed size above `nodes`, or `nodes` itself where there is none."""
        return next((size for size in range(nodes + 1, self.nodes_max + 1) if self.allows(size)), nodes)


@dataclass(frozen=True, slots=True)
class Planned:
    """What the last plan wants, and the version of the pool that it was made for."""

    pool_version: int = 0
    time_s: float = float("-inf")
    assignment: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backoff:
    """A node that refused `count` placements in a row and is left out until `until_s`."""

    until_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that crashed in `pilot`."""

    pilot: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Stray:
    """A running job of the harvested partition that no lease stands behind, first seen so at `seen_s`.

    `named` once it was there for longer than any pilot whose lease is on its way; `cancelled_s` is when it was last
    asked to be cancelled.
    """

    job: ElasticJob
    seen_s: float
    named: bool = False
    cancelled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Node-seconds since the ledger began; none of them ever goes back.

    pool: nodes in the pool or carrying our pilots; used: a pilot of a trainer runs; training: its workers take part.
    """

    pool_node_seconds: float = 0.0
    used_node_seconds: float = 0.0
    training_node_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """All that the core knows between two events.

    `trainers` is in order of arrival, `leases` holds those not ended, `strays` the jobs of the harvested partition
    that belong to no lease, by job id. `watched_s` is the time of the first snapshot since the daemon started,
    `preempted_s` when Slurm last preempted a pilot. `plan_due` says that something changed since the last plan was
    made.
    """

    settings: Settings = Settings()
    time_s: float = float("-inf")
    pool: PoolView = PoolView()
    trainers: Mapping[str, Trainer] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    planned: Planned = Planned()
    sequence: int = 0
    backoff: Mapping[str, Backoff] = field(default_factory=dict)
    failures: Mapping[str, tuple[Failure, ...]] = field(default_factory=dict)
    quarantined: Mapping[str, float] = field(default_factory=dict)
    strays: Mapping[str, Stray] = field(default_factory=dict)
    watched_s: float = float("inf")
    preempted_s: float = float("-inf")
    grants: tuple[float, ...] = ()
    usage: Usage = Usage()
    plan_due: bool = False


# Events: what happened, each with its time.


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """A good snapshot was read."""

    time_s: float
    view: PoolView


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on without a good snapshot."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that a registering driver still has."""

    id: str
    node: str
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """A driver came, for the first time or again; only the fields of the request in `trainer` count."""

    time_s: float
    trainer: Trainer
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """A driver asked for its leases."""

    time_s: float
    trainer: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A driver told what happened; `reports` are checked wire events (`op` and fields)."""

    time_s: float
    trainer: str
    reports: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A driver ended its trainer."""

    time_s: float
    trainer: str
    exit_code: int
    reason: str
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings changed: a reload or `bft tune`."""

    time_s: float
    settings: Settings


Event = PoolObserved | Tick | Registered | Heard | Reported | Finished | Configured


# Actions: what the daemon does and writes down.


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A lease was granted, revoked, adopted or has ended; its trainer's driver is to be woken."""

    kind: Literal["granted", "revoked", "adopted", "ended"]
    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision as a sentence for people."""

    trainer: str | None
    text: str


@dataclass(frozen=True, slots=True)
class CancelPilot:
    """A pilot is to be cancelled by the daemon because its driver did not end it, or none of ours started it."""

    job_id: str
    trainer: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Anything else that belongs in the ledger."""

    kind: str
    trainer: str | None = None
    node: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


Action = LeaseChanged | Decided | CancelPilot | Happened
