"""Decisions as data: what was decided about whom, by which numbers and why.

`bftd.core.model.messages` puts them into words. A `TrainerDecision` is about a trainer or job, and may be put as a fact
or in the conditional. A `Notice` is about nodes, jobs or the plan as a whole. `kind` names its class in the ledger.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bftd.protocol import changes
from bftd.protocol.changes import Verb


@dataclass(frozen=True, slots=True)
class _TrainerDecision:
    """An action of a trainer or job, or the lack of one; `who` is the name that people call it by."""

    who: str


@dataclass(frozen=True, slots=True)
class _Beginning(_TrainerDecision):
    """A trainer gets `added` nodes, has `size` of them and can run; `samples_per_s` is None if not known.

    `seen` says that the trainer was seen running on this many nodes. Otherwise the rate is an estimate. `on` is the
    class of the nodes if there are several.
    """

    size: int
    added: tuple[str, ...]
    samples_per_s: float | None
    seen: bool
    on: str = ""


@dataclass(frozen=True, slots=True)
class Started(_Beginning):
    """A new trainer gets its first nodes."""

    kind = "started"
    verb = changes.STARTS


@dataclass(frozen=True, slots=True)
class Resumed(_Beginning):
    """A suspended trainer gets nodes again."""

    kind = "resumed"
    verb = changes.RESUMES


@dataclass(frozen=True, slots=True)
class Grew(_TrainerDecision):
    """A trainer gets `added` nodes in addition to the `before` that it has.

    `gain` is in samples/s, None if its speed is not known; over `t_fwd_s` it outweighs a stall of `stall_s`. `seen` is
    as in `Started`.
    """

    kind = "grew"
    verb = changes.GROWS

    before: int
    added: tuple[str, ...]
    gain: float | None
    seen: bool
    t_fwd_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class Shrank(_TrainerDecision):
    """A trainer gives back some of its nodes because the plan says so."""

    kind = "shrank"
    verb = changes.SHRINKS

    before: int
    dropped: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Suspended(_TrainerDecision):
    """A trainer gives back all of its nodes because the plan says so."""

    kind = "suspended"
    verb = changes.SUSPENDED

    dropped: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GaveBack(_TrainerDecision):
    """A trainer loses nodes that left the pool, and has `left` nodes left."""

    kind = "gave_back"
    verb = changes.GIVES_BACK

    lost: tuple[str, ...]
    left: int
    why: str


@dataclass(frozen=True, slots=True)
class Left(_TrainerDecision):
    """A trainer leaves nodes to the regular job `to`, which can start there, and has `left` nodes left.

    `by` is the time of day until which it may finish a step first; "" if it leaves at once.
    """

    kind = "left"

    lost: tuple[str, ...]
    left: int
    to: str
    by: str = ""

    @property
    def verb(self) -> Verb:
        """The verb "left", since it is gone before anybody reads this; "leaves" if it may finish a step first."""
        return Verb("leaves" if self.by else "left", "leave")


@dataclass(frozen=True, slots=True)
class Waits(_TrainerDecision):
    """A trainer without nodes stays without."""

    kind = "waits"
    verb = Verb("waits", "wait")

    why: str


@dataclass(frozen=True, slots=True)
class Stays(_TrainerDecision):
    """A trainer may not grow beyond the `held` nodes that it has."""

    kind = "stays"
    verb = Verb("stays", "stay")

    held: int
    why: str


@dataclass(frozen=True, slots=True)
class Keeps(_TrainerDecision):
    """Growing from `held` nodes by `more` would not pay: `gain` samples/s over `t_fwd_s`, for `stall_s` of stall."""

    kind = "keeps"
    verb = Verb("keeps", "keep")

    held: int
    more: int
    gain: float
    t_fwd_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class GetsFirst(_TrainerDecision):
    """A trainer had no node for `waited_s`, and its user has none: it gets one `within_s`, whatever the objective."""

    kind = "gets_first"
    verb = Verb("is to have a first node", "be to have a first node")

    waited_s: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Tried(_TrainerDecision):
    """A trainer on `held` nodes is tried on `nodes` for `for_s`: knowing how it scales is worth `gain` a second.

    `gain` is in the units of the objective, at best over all trainers.
    """

    kind = "tried"
    verb = Verb("is tried", "be tried")

    held: int
    nodes: int
    for_s: float
    gain: float


@dataclass(frozen=True, slots=True)
class Saved(_TrainerDecision):
    """A suspended trainer's driver has saved its progress, up to `step`."""

    kind = "saved"
    verb = Verb("is suspended", "be suspended")

    step: int


@dataclass(frozen=True, slots=True)
class Lost(_TrainerDecision):
    """A trainer's driver is gone."""

    kind = "lost"
    verb = Verb("is lost", "be lost")

    why: str


@dataclass(frozen=True, slots=True)
class Ended(_TrainerDecision):
    """A trainer's driver has ended it, saved up to `step` (None: from before it was kept); `why` may be empty."""

    kind = "finished"

    exit_code: int
    why: str
    step: int | None = None

    @property
    def cancelled(self) -> bool:
        """Whether Slurm or the user ended its job."""
        return self.why == changes.CANCELLED

    @property
    def verb(self) -> Verb:
        """The verb: "has finished", unless it was cancelled."""
        return Verb("was cancelled", "have been cancelled") if self.cancelled else Verb("has finished", "have finished")


@dataclass(frozen=True, slots=True)
class Cancelled(_TrainerDecision):
    """The pilot or job `who` is cancelled."""

    kind = "cancelled"
    verb = Verb("is cancelled", "be cancelled")

    why: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A driver reported something about its trainer `who`."""

    kind = "noted"

    who: str
    text: str


@dataclass(frozen=True, slots=True)
class MapKept:
    """No plan could be made, so all trainers keep what they have."""

    kind = "map_kept"

    error: str


@dataclass(frozen=True, slots=True)
class SolverReplaced:
    """A solver failed, and others are asked in its place for `for_s` seconds; at present it is `instead`."""

    kind = "solver_replaced"

    solver: str
    instead: str
    error: str
    for_s: float


@dataclass(frozen=True, slots=True)
class NodeAvoided:
    """A node is left alone for `for_s` seconds, as the workers of `pilots` different pilots failed there."""

    kind = "node_avoided"

    node: str
    for_s: float
    pilots: int


@dataclass(frozen=True, slots=True)
class NodeOverdue:
    """A node was asked back `since_s` seconds ago and the trainer with the id `trainer` still has it."""

    kind = "node_overdue"

    node: str
    since_s: float
    trainer: str


@dataclass(frozen=True, slots=True)
class OrphanJobFound:
    """A user occupies nodes of the harvested partition with a job that has no lease.

    `daemon` is the identity of another daemon in the job's comment, "" if there is none.
    """

    kind = "job_strays"  # in ledgers and answers, until 1.1

    user: str
    nodes: tuple[str, ...]
    job_id: str
    daemon: str = ""


@dataclass(frozen=True, slots=True)
class GrowthPaused:
    """An administrator paused `what`; with `release` the nodes that were lent there are asked back."""

    kind = "growth_paused"

    by: str
    what: str
    why: str
    release: bool


@dataclass(frozen=True, slots=True)
class PauseLifted:
    """An administrator lifted the pause of `what`."""

    kind = "pause_lifted"

    by: str
    what: str


@dataclass(frozen=True, slots=True)
class CancellingStopped:
    """Operator mode stopped, as it would have cancelled `jobs` jobs in an hour with `running` in the partition."""

    kind = "cancelling_stopped"

    jobs: int
    running: int
    most: int


@dataclass(frozen=True, slots=True)
class ForeignPilots:
    """Pilots of another daemon, which calls itself `identity`, run in the harvested partition."""

    kind = "foreign_pilots"

    identity: str
    job_ids: tuple[str, ...]
    users: tuple[str, ...]


TrainerDecision = (
    Started
    | Resumed
    | Grew
    | Shrank
    | Suspended
    | GaveBack
    | Left
    | Waits
    | Stays
    | Keeps
    | GetsFirst
    | Tried
    | Saved
    | Lost
    | Ended
    | Cancelled
)
Notice = (
    Noted
    | MapKept
    | SolverReplaced
    | NodeAvoided
    | NodeOverdue
    | OrphanJobFound
    | GrowthPaused
    | PauseLifted
    | CancellingStopped
    | ForeignPilots
)
Decision = TrainerDecision | Notice


def to_json(decision: Decision) -> dict[str, Any]:
    """Return a decision's kind and fields as a JSON object."""
    return {"kind": decision.kind} | asdict(decision)
