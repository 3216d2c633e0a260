"""The daemon's answers as frozen dataclasses: nodes, trainers, decisions, history, usage.

Fields in seconds end in `_s`; times are unix seconds. A field is None if the daemon did not know it, or is too old to
send it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bftd.base.format import moment
from bftd.base.view import TrainerLine, trainer_line
from bftd.client.decode import key
from bftd.client.display import Sheet, Shown, sheet

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Node(Shown):
    """One node of the harvested partition: the trainer that it serves, and why it is or is not in the pool."""

    name: str = ""
    state: str = ""
    node_class: str = key("class", "")
    kind: str | None = None
    in_pool: bool = False
    window_s: float | None = None
    trainer: str | None = None
    lease: str | None = None
    lease_state: str | None = None
    why: str = ""

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {
            "node": self.name,
            "state": self.lease_state or self.state,
            "trainer": self.trainer,
            "class": self.node_class,
            "window_s": self.window_s,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class NodeGroup(Shown):
    """Nodes with the same use for the same reason: `nodes` is their folded set, such as n[1-3].

    `kind` is regular, planned, leased, idle or away; None from a daemon that does not send it.
    """

    nodes: str = ""
    count: int | None = None
    node_class: str = key("class", "")
    kind: str | None = None
    trainer: str | None = None
    lease_state: str | None = None
    in_pool: bool = False
    why: str = ""

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        does = self.lease_state if self.trainer else self.why
        return {"nodes": self.nodes, "does": does, "count": self.count, "trainer": self.trainer, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """Samples/s by number of nodes of one class; `origin` and `basis` tell where an estimate is from."""

    node_class: str = key("class", "")
    nodes: tuple[int, ...] = ()
    samples_per_s: tuple[float, ...] = ()
    origin: str = "measured"
    basis: str = ""

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """The pairs of nodes and samples/s."""
        return tuple(zip(self.nodes, self.samples_per_s, strict=False))


@dataclass(frozen=True, slots=True)
class Curve:
    """A trainer's speed: estimated, measured, and the one curve that bftd plans with."""

    estimates: tuple[CurvePoints, ...] = ()
    measured: tuple[CurvePoints, ...] = ()
    learned: CurvePoints | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ResizeCosts:
    """The estimated cost of a resize at the present size, in seconds without training."""

    nodes: int | None = None
    up_s: float | None = None
    down_s: float | None = None
    resume_s: float | None = None
    save_s: float | None = None
    state_bytes: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Trainer(Shown):
    """One elastic training job.

    `planned` is the number of nodes in the last plan, `requested` those leased, `observed` those with a pilot that
    Slurm shows, and `working` those on which its workers train. `efficiency` is samples/s relative to as many single
    nodes. `expected_end_s` is when `total_steps` will be done at the present speed. Another user's trainer has no loss
    and, if Slurm keeps jobs private, no id either.
    """

    id: str = ""
    name: str = ""
    user: str = ""
    account: str | None = None
    backend: str = ""
    state: str = ""
    nodes_min: int = 0
    nodes_max: int = 0
    planned: int = 0
    requested: int = 0
    observed: int = 0
    working: int = 0
    step: int = 0
    total_steps: int | None = None
    expected_end_s: float | None = None
    samples: float = 0.0
    samples_per_s: float = 0.0
    efficiency: float | None = None
    loss: float | None = None
    resizes: int = 0
    suspends: int = 0
    steps_lost: int = 0
    exit_code: int | None = None
    on: str | None = None
    curve: Curve | None = None
    resize_costs: ResizeCosts | None = None

    @property
    def finished(self) -> bool:
        """Whether the trainer has finished: it needs no more nodes."""
        return self.state == "finished"

    def line(self, now_s: float) -> TrainerLine:
        """Return what is shown of the trainer, in words."""
        return trainer_line({name: getattr(self, name) for name in Trainer.__slots__}, now_s)

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        line = self.line(0.0)
        return {
            "id": self.id,
            "name": self.name,
            "user": self.user,
            "state": line.state,
            "nodes": line.nodes,
            "range": line.range,
            "step": self.step,
            "samples/s": self.samples_per_s,
            "efficiency": self.efficiency,
            "ends": moment(self.expected_end_s),
            "loss": self.loss,
            "resizes": self.resizes,
            "on": self.on,
        }


@dataclass(frozen=True, slots=True)
class Decision(Shown):
    """One decision of the daemon in a sentence; `decision` is the same as data.

    `trainer` is None if it is about no trainer.
    """

    at_s: float = 0.0
    trainer: str | None = None
    text: str = ""
    decision: Any = None

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {"time": moment(self.at_s), "decision": self.text}


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """One trainer, None if only the ledger remembers it, and the last decisions about it, oldest first."""

    trainer: Trainer | None = None
    decisions: tuple[Decision, ...] = ()

    def sheets(self) -> Sequence[Sheet]:
        """Return tables of the trainer and of the decisions."""
        of = () if self.trainer is None else self.trainer.sheets()
        return (*of, sheet("Decisions", self.decisions))


@dataclass(frozen=True, slots=True)
class PastLease(Shown):
    """A past lease of a node: who had it, from when to when, and why it began and ended.

    Of other users' private trainers only the times are known.
    """

    lease: str | None = None
    trainer: str | None = None
    name: str | None = None
    user: str | None = None
    granted_s: float | None = None
    revoked_s: float | None = None
    ended_s: float | None = None
    give_back_s: float | None = None
    overdue_s: float | None = None
    why: str | None = None
    why_revoked: str | None = None

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {
            "from": moment(self.granted_s),
            "to": moment(self.ended_s),
            "trainer": self.trainer,
            "name": self.name,
            "user": self.user,
            "given back in (s)": self.give_back_s,
            "why it ended": self.why_revoked,
        }


@dataclass(frozen=True, slots=True)
class NodeExplanation(Shown):
    """One node, None if it is no longer harvested, its recent leases, and the decisions about it."""

    node: Node | None = None
    leases: tuple[PastLease, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def sheets(self) -> Sequence[Sheet]:
        """Return tables of the node, its leases and the decisions."""
        of = () if self.node is None else self.node.sheets()
        return (*of, sheet("Leases", self.leases), sheet("Decisions", self.decisions))


@dataclass(frozen=True, slots=True)
class Pause(Shown):
    """A pause of all nodes, some nodes, a user or an account: since when, by whom and why."""

    kind: str = ""
    names: tuple[str, ...] = ()
    by: str = ""
    since_s: float = 0.0
    why: str = ""
    release: bool = False
    text: str = ""

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {"since": moment(self.since_s), "by": self.by, "what": self.text}


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that somebody has to look at."""

    kind: str = ""
    node: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """The hours of harvesting, a bound or a cap, in words."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class OrphanJob:
    """A job of the harvested partition without a lease."""

    job_id: str = ""
    user: str = ""
    account: str = ""
    nodes: tuple[str, ...] = ()
    since_s: float = 0.0
    cancelled: bool = False


Stray = OrphanJob  # its name until 1.1


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Times from asking nodes back until they were idle, in seconds."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Window(Shown):
    """The use of the last `window_s` seconds: the paper's U, and the shares of the pool that trained and were held.

    `recovered` and `used_node_seconds` are older names of `held_share` and `held_node_seconds`.
    """

    window_s: float = 0.0
    u: float | None = None
    training_share: float | None = None
    held_share: float | None = None
    pool_node_seconds: float = 0.0
    held_node_seconds: float = 0.0
    training_node_seconds: float = 0.0
    recovered: float | None = None
    used_node_seconds: float = 0.0

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {
            "hours": self.window_s / _HOUR_S,
            "U": self.u,
            "training": self.training_share,
            "held": self.held_share,
            "pool node-hours": self.pool_node_seconds / _HOUR_S,
            "training node-hours": self.training_node_seconds / _HOUR_S,
            "held node-hours": self.held_node_seconds / _HOUR_S,
        }


@dataclass(frozen=True, slots=True)
class Status(Shown):
    """The daemon now: nodes in groups, trainers, pauses and limits, the last decisions, and counters.

    `used_node_seconds` is the older name of `held_node_seconds`, and `strays` that of `orphan_jobs` (until 1.1): older
    daemons send no other.
    """

    time_s: float = 0.0
    version: str = ""
    mode: str = ""
    snapshot_age_s: float | None = None
    hold: str | None = None
    groups: tuple[NodeGroup, ...] = key("node_groups", ())
    nodes: tuple[Node, ...] = ()
    trainers: tuple[Trainer, ...] = ()
    orphan_jobs: tuple[OrphanJob, ...] = ()
    strays: tuple[OrphanJob, ...] = ()
    caps: tuple[Notice, ...] = ()
    pauses: tuple[Pause, ...] = ()
    hours: Notice | None = None
    bound: Notice | None = None
    alarms: tuple[Alarm, ...] = ()
    silent: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    give_back_s: GiveBack = GiveBack()
    pool_node_seconds: float = 0.0
    held_node_seconds: float = 0.0
    training_node_seconds: float = 0.0
    starting_node_seconds: float = 0.0
    resizing_node_seconds: float = 0.0
    used_node_seconds: float = 0.0
    windows: tuple[Window, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training_share(self) -> float | None:
        """The share of the pool's node-seconds that trained, since the ledger began; None before there were any."""
        return self.training_node_seconds / self.pool_node_seconds if self.pool_node_seconds > 0 else None

    @property
    def held_share(self) -> float | None:
        """The share of the pool's node-seconds with a pilot, since the ledger began; None before there were any."""
        return self.used_node_seconds / self.pool_node_seconds if self.pool_node_seconds > 0 else None

    def cells(self) -> Mapping[str, Any]:
        """Return the facts on the daemon itself."""
        return {
            "version": self.version,
            "mode": self.mode,
            "time": moment(self.time_s),
            "snapshot age (s)": self.snapshot_age_s,
            "training": self.training_share,
            "held": self.held_share,
            **({"hold": self.hold} if self.hold else {}),
            **{f"pause {at}": pause.text for at, pause in enumerate(self.pauses, 1)},
            **{f"alarm {at}": alarm.text for at, alarm in enumerate(self.alarms, 1)},
        }

    def sheets(self) -> Sequence[Sheet]:
        """Return tables of the daemon, its nodes, its trainers and its last decisions."""
        own = Sheet("bftd", ("", ""), Shown.sheets(self)[0].rows)
        nodes: Sequence[Shown] = self.groups or self.nodes
        return (own, sheet("Nodes", nodes), sheet("Trainers", self.trainers), sheet("Decisions", self.decisions))


@dataclass(frozen=True, slots=True)
class Event(Shown):
    """One row of the ledger; pass `rowid` as `after` to get the events that follow."""

    rowid: int = 0
    at_s: float = 0.0
    kind: str = ""
    trainer: str | None = None
    node: str | None = None
    data: Any = None

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        data = self.data if isinstance(self.data, Mapping) else {}
        summary = data.get("text") or " ".join(f"{name}={value}" for name, value in data.items())
        return {
            "time": moment(self.at_s),
            "kind": self.kind,
            "trainer": self.trainer,
            "node": self.node,
            "what": str(summary),
        }
