"""The data types of the decision core: pool, trainers, leases, and the actions of `bftd.core.step`.

Everything here is immutable. Times are unix seconds and come in on events; the core has no clock of its own. Three sets
are never mixed up: *planned* (what the last plan wants), *requested* (leases granted and not revoked) and *observed*
(leases whose pilot Slurm shows running).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bftd.config.hours import UTC, Zone
from bftd.config.keys import DecideConfig, LimitsConfig, PoolConfig, PromiseConfig, SlurmConfig
from bftd.core.model.classes import Classes
from bftd.core.model.decisions import Decision
from bftd.core.model.delays import Delays, TouchedStart
from bftd.core.model.earmark_usage import EarmarkUsage
from bftd.core.model.foreign_jobs import Cancels, ElasticJob, OrphanJob
from bftd.core.model.messages import Mood, sentence
from bftd.core.model.pause import Pause
from bftd.core.model.solvers import FailedSolver
from bftd.core.scaling.amdahl import Weights
from bftd.core.scaling.learning import ScalingModel
from bftd.core.scaling.pace import Attendance, Pace
from bftd.protocol.lease import Phase
from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes

TrainerState = Literal["waiting", "running", "suspended", "finished"]
Assignment = Mapping[str, tuple[str, ...]]  # the nodes of each trainer, by its id


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the core decides by: sections of the configuration, and some facts about the host and daemon.

    Jobs of the `spared` users are never cancelled. `zone` is the host's time zone. `trusting` is for simulated drivers:
    they are never silent, and the pilots and curves that they report are believed.
    """

    decide: DecideConfig = field(default_factory=DecideConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    spared: frozenset[str] = frozenset({"root"})
    zone: Zone = UTC
    identities: frozenset[str] = frozenset()  # of this daemon's pilots; empty if it has none
    trusting: bool = False
    promise: PromiseConfig = field(default_factory=PromiseConfig)

    def changed(self, **keys: Any) -> Settings:
        """Return the settings with other values of some keys, of any section. Raises TypeError for an unknown key."""
        sections = {}
        for section in ("decide", "limits", "pool", "slurm", "promise"):
            before = getattr(self, section)
            mine = {name: keys.pop(name) for name in list(keys) if hasattr(before, name)}
            sections[section] = replace(before, **mine)
        if keys:
            raise TypeError(f"the core has no settings {', '.join(keys)}")
        return replace(self, **sections)


@dataclass(frozen=True, slots=True)
class PoolNode:
    """One node of the harvested partition as the last snapshot shows it.

    `window_s` is the time until Slurm plans to use the node (None: nothing planned); `wanted` is true when a regular
    job has the node or is about to get it; `pilot` is the job id of our pilot that runs there. `node_class` is one of
    the view's classes. `co_located` is a job on the rest of a pilot's node; an `unheard` node does not answer.
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
    node_class: str = ""
    co_located: str = ""
    unheard: bool = False


@dataclass(frozen=True, slots=True)
class Earmark:
    """Nodes that are kept free for a regular `job`, which Slurm can start there once no pilot is left on them.

    The earmark is kept since `since_s`. Pilots were on `leaving` when it was made. Slurm's next backfill cycle is
    expected at `due_s`: by then they must have left. If `due_s` is None, the time is not known, and they leave at once.
    """

    job: str
    nodes: tuple[str, ...]
    since_s: float
    leaving: tuple[str, ...] = ()
    due_s: float | None = None


EarmarkEnd = Literal["started", "gone", "no longer fits", "backed off"]


@dataclass(frozen=True, slots=True)
class EarmarkOver:
    """An earmark that is no longer kept: its job has `started` on nodes, is `gone`, fits no more, or is backed off."""

    earmark: Earmark
    end: EarmarkEnd


@dataclass(frozen=True, slots=True)
class PoolView:
    """The node pool at one snapshot: the paper's N, with the reason for every node that is not in it.

    `version` counts changes of its membership, `hold` is the sentence that forbids growing, `refused` says why nothing
    may be harvested, "" if it may. Reading began at `looked_s`; Slurm backfills not before `cycle_s`. Jobs: `pilots`
    maps job ids to nodes, `owners` to the trainer whose driver started the pilot, `daemons` to its daemon; `job_ids`
    are all of Slurm, `elastic` run on harvested nodes, `elsewhere` are pilots on others, `accounts` (user, account),
    `touched` have just started. Nodes: `classes` are of all harvested ones; `barred` are kept out by pauses, hours and
    bounds, `beyond` by the `bound` on all trainers. A job for which Slurm preempts may count on `counted_on`: none is
    lent anew. `earmarks` are kept for waiting jobs, by id, `earmarks_over` just ended; `wary` says why some get none.
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
    barred: frozenset[str] = frozenset()
    bound: str = ""
    beyond: frozenset[str] = frozenset()
    classes: Classes = field(default_factory=dict)
    daemons: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    earmarks: Mapping[str, Earmark] = field(default_factory=dict)
    earmarks_over: tuple[EarmarkOver, ...] = ()
    wary: str = ""
    looked_s: float = float("-inf")
    cycle_s: float = float("-inf")
    counted_on: frozenset[str] = frozenset()
    touched: tuple[TouchedStart, ...] = ()
    elsewhere: Mapping[str, ElasticJob] = field(default_factory=dict)

    @property
    def seen(self) -> bool:
        """Whether any snapshot was read since the daemon started, or since its clock was set."""
        return self.time_s > float("-inf")

    def made(self, before: Collection[str]) -> tuple[Earmark, ...]:
        """Return the earmarks that are new if jobs had one `before`, with those made again after one that is over."""
        again = {over.earmark.job for over in self.earmarks_over}
        return tuple(earmark for job, earmark in self.earmarks.items() if job not in before or job in again)


@dataclass(frozen=True, slots=True)
class Lease:
    """The grant of one node to one trainer; its id, `node.sequence`, is never used again.

    `asked_back_s` is when Slurm first needed the node (start of the give-back), `missed_polls` counts snapshots in a
    row that do not show the pilot after it was placed, the first of them at `missed_s`. `shown` says that Slurm showed
    the pilot at least once: before that, only the driver's word says that it exists. `working_s` is when the first
    worker took part there, and `leaving_s` when Slurm asked the agent to leave, by the clock of the driver's host.
    `cancelled_s` is when bftd last tried to cancel the pilot. Until `leave_by_s`, if set, it may leave at a step's end.
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
    partition: str = ""  # that of the pilot; "" if the daemon harvests one
    cancelled_s: float | None = None
    shown: bool = False
    working_s: float | None = None
    leaving_s: float | None = None
    ended_s: float | None = None
    leave_by_s: float | None = None

    @property
    def live(self) -> bool:
        """Whether the trainer may keep the node."""
        return self.revoked_s is None

    @property
    def end_s(self) -> float:
        """The end of the pilot's time limit, or the end that it will have if it is placed at once."""
        return (self.placed_s or self.granted_s) + self.limit_s


@dataclass(frozen=True, slots=True)
class Trainer:
    """One elastic training job (the paper's j): its driver's last request, and everything reported since."""

    request: Registration  # the driver's registration, without the leases that it brought along
    arrived_s: float  # when it came into the queue (unix seconds); earlier trainers are considered first
    knowledge: ScalingModel  # its scaling, and the cost of its resizes
    epoch: int = 1  # fences older drivers: each registration raises it
    version: int = 1  # counts the changes of its lease list
    state: TrainerState = "waiting"
    heard_s: float = 0.0  # when its driver last called
    step: int = 0  # saved progress: it never goes back (S10)
    samples: float = 0.0
    samples_per_s: float = 0.0  # its present rate; 0 if not known
    total_steps: int | None = None  # of the whole training, None if its script does not tell
    pace: Pace = field(default=Pace())
    attendance: Attendance = field(default=Attendance())
    loss: float | None = None
    resizes: int = 0
    suspends: int = 0
    steps_lost: int = 0
    exit_code: int | None = None
    finished_s: float | None = None
    refused_rounds: int = 0  # rounds of placements in a row without a pilot that Slurm showed
    refused_round_s: float = float("-inf")  # when the last such round was granted
    no_growth_until_s: float = float("-inf")  # after too many such rounds it does not grow before this
    idled_s: float = 0.0  # node-seconds for which its grants left nodes idle
    worked_s: float = 0.0  # node-seconds of its pilots that Slurm showed and that have ended
    stalled_node_seconds: float = 0.0  # of stalls that were counted as training before its driver reported them
    resumed_s: float | None = float("-inf")  # when it last went on; None from a suspension until the next first step
    resume_lent_s: float = float("-inf")  # when it was last lent nodes to go on
    last_reason: str = field(default="", metadata={"old_name": "said"})  # the key of why it stays: none is given twice
    unknown_leases: tuple[Lease, ...] = ()  # those that its driver holds and the daemon does not know: revoked
    account: str = ""  # as Slurm shows it, never as a driver says; "" while it is not known
    held: int = 0  # the number of nodes it had when a plan was last made
    held_since_s: float = 0.0  # since when it has had that many
    probe_nodes: int = 0  # the number of nodes it is tried on at present, 0 if none
    probe_until_s: float | None = None
    probes: int = 0  # the number of its trials so far
    own_sizes: Sizes | None = None  # changed by its user: these two count before what its driver registers
    own_weight: float | None = None

    @property
    def id(self) -> str:
        """The job id of its driver, or an id that begins with "run-" for a driver of `bft run`."""
        return self.request.id

    @property
    def name(self) -> str:
        """The name that its user gave it."""
        return self.request.name

    @property
    def user(self) -> str:
        """The user that it belongs to."""
        return self.request.user

    @property
    def sizes(self) -> Sizes:
        """The numbers of nodes that it can run on."""
        return self.request.sizes

    @property
    def active(self) -> bool:
        """Whether the trainer still wants nodes."""
        return self.state != "finished"


@dataclass(frozen=True, slots=True)
class Planned:
    """The last plan, and the version of the pool that it was made for."""

    pool_version: int = 0
    time_s: float = float("-inf")
    assignment: Assignment = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backoff:
    """A node that refused `count` placements in a row, of `user` alone if named; left out until `until_s`."""

    until_s: float
    count: int
    user: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker of `user` that crashed in `pilot`; failures without a user, of old ledgers, count no more."""

    pilot: str
    at_s: float
    user: str = ""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Node-seconds since the ledger began, which never decrease: in the pool or held, and (`used`) held by a pilot.

    training: its workers end steps. starting: no step has ended yet. resizing: workers stood still at a change of size.
    """

    pool_node_seconds: float = 0.0
    used_node_seconds: float = 0.0
    training_node_seconds: float = 0.0
    starting_node_seconds: float = 0.0
    resizing_node_seconds: float = 0.0


KEPT: Mapping[str, bool] = {"kept": True}  # fields that survive a restart: the ledger keeps them by name


@dataclass(frozen=True, slots=True)
class State:
    """All that the core knows between two events.

    A step's draft and the ledger are both made from these fields. `trainers` is in order of arrival, `leases` holds
    those not ended, `orphan_jobs` the jobs of the harvested partition that belong to no lease, by job id. `watched_s`
    is the time of the first snapshot since the daemon started, and `elders` are the numbers of the jobs of that one.
    `alarms` are sentences that stay until an administrator reloads. `pauses` are filed under their keys. `ended` has by
    node the lease that ended there a short while ago. `failed_solvers` rest for a while, by name. `scaling` sums up how
    trainers that have ended here scaled. `plan_due` says that something changed since the last plan.
    """

    settings: Settings = Settings()
    time_s: float = float("-inf")
    pool: PoolView = PoolView()
    trainers: Mapping[str, Trainer] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    planned: Planned = Planned()
    sequence: int = field(default=0, metadata=KEPT)
    backoff: Mapping[str, Backoff] = field(default_factory=dict, metadata=KEPT)
    failures: Mapping[str, tuple[Failure, ...]] = field(default_factory=dict, metadata=KEPT)
    quarantined: Mapping[str, float] = field(default_factory=dict, metadata=KEPT)
    ended: Mapping[str, Lease] = field(default_factory=dict)
    orphan_jobs: Mapping[str, OrphanJob] = field(default_factory=dict)
    watched_s: float = float("inf")
    elders: frozenset[str] = frozenset()
    cancels: Cancels = field(default_factory=Cancels)
    alarms: Mapping[str, str] = field(default_factory=dict)
    grants: tuple[float, ...] = field(default=(), metadata=KEPT)
    usage: NodeUsage = field(default=NodeUsage(), metadata=KEPT)
    earmark_usage: EarmarkUsage = field(default=EarmarkUsage(), metadata=KEPT)
    delays: Delays = field(default=Delays(), metadata=KEPT)
    pauses: Mapping[str, Pause] = field(default_factory=dict, metadata=KEPT)
    failed_solvers: Mapping[str, FailedSolver] = field(default_factory=dict)
    scaling: Weights = field(default=(), metadata=KEPT)
    plan_due: bool = False


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """An action, as all below: a lease was granted, revoked, adopted or has ended; its driver is to be woken."""

    kind: Literal["granted", "revoked", "adopted", "ended"]
    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, about a trainer or about none. In the conditional it was not carried out, but would have been."""

    trainer: str | None
    decision: Decision
    mood: Mood = "indicative"

    @property
    def text(self) -> str:
        """The decision as a sentence for people."""
        return sentence(self.decision, self.mood)


@dataclass(frozen=True, slots=True)
class CancelPilot:
    """The daemon is to cancel a job: a pilot that its driver did not end, or a job that no driver of ours started."""

    job_id: str
    trainer: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SolverFailed:
    """No plan could be made: the trainers go on with the present map."""

    error: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Any other event for the ledger."""

    kind: str
    trainer: str | None = None
    node: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageShare:
    """The node-seconds of the pool that one user's trainers in one account had for a while.

    used: the node was held. training: workers ended steps. leaving: it was asked back and its pilot still there.
    """

    user: str
    account: str
    used_node_seconds: float
    training_node_seconds: float
    leaving_node_seconds: float


@dataclass(frozen=True, slots=True)
class Charged:
    """The split by user and account of the node-seconds by which `NodeUsage` has just grown; for the ledger."""

    shares: tuple[UsageShare, ...]


Action = LeaseChanged | Decided | CancelPilot | SolverFailed | Happened | Charged
