"""One step in the making: a mutable draft of the state, and the few operations that keep its references right.

`bftd.core.step` opens a `Draft` on an immutable state, lets the handlers change it, and closes it into the next state
and the actions. Every change of a lease goes through here, so that lease lists, versions and actions agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeVar

from bftd.core.model import growth_stops
from bftd.core.model.decisions import Decision
from bftd.core.model.delays import Delays
from bftd.core.model.domain import (
    Action,
    Backoff,
    CancelPilot,
    Decided,
    Failure,
    Happened,
    Lease,
    LeaseChanged,
    NodeUsage,
    Planned,
    PoolNode,
    PoolView,
    Settings,
    State,
    Trainer,
)
from bftd.core.model.earmark_usage import EarmarkUsage
from bftd.core.model.foreign_jobs import Cancels, OrphanJob
from bftd.core.model.messages import sentence
from bftd.core.model.pause import Pause
from bftd.core.model.solvers import FailedSolver
from bftd.core.model.staggered_limits import StaggeredLimits
from bftd.core.model.timing import (
    BACKOFF_FIRST_S,
    BACKOFF_MOST_S,
    BACKOFF_ONE_USER_S,
    CANCEL_AGAIN_S,
    GRANT_SILENT_S,
    PREEMPTED_REST_S,
    RATE_WINDOW_S,
    REFUSED_ROUNDS,
    SOUND_AFTER_S,
    whole_minutes,
)
from bftd.core.scaling.amdahl import Weights
from bftd.protocol.lease import Phase

_Item = TypeVar("_Item", Lease, Trainer)
_FIELDS = tuple(field.name for field in dataclass_fields(State))


class Draft:
    """The draft of one step; see the module. Without `explain` nothing is recorded, because nobody would read it."""

    settings: Settings
    time_s: float
    pool: PoolView
    trainers: dict[str, Trainer]
    leases: dict[str, Lease]
    planned: Planned
    sequence: int
    backoff: dict[str, Backoff]
    failures: dict[str, tuple[Failure, ...]]
    quarantined: dict[str, float]
    ended: dict[str, Lease]
    orphan_jobs: dict[str, OrphanJob]
    watched_s: float
    elders: frozenset[str]
    cancels: Cancels
    alarms: dict[str, str]
    grants: tuple[float, ...]
    usage: NodeUsage
    earmark_usage: EarmarkUsage
    delays: Delays
    pauses: dict[str, Pause]
    failed_solvers: Mapping[str, FailedSolver]
    scaling: Weights
    plan_due: bool

    def __init__(self, state: State, time_s: float, *, explain: bool = True) -> None:
        self.explain = explain
        self.actions: list[Action] = []
        self.unsolved = ""  # why no plan could be made in this step
        self._before = state
        self._relisted: Counter[str] = Counter()
        self._on: dict[str, str] | None = None
        # The ids of each trainer's leases, from the second call on: most steps ask once, and some for every trainer.
        self._of: dict[str, dict[str, None]] | None = None
        self._was_asked = False
        for name in _FIELDS:
            kept = getattr(state, name)
            # a mapping is copied, so that changes in this step leave the previous state alone
            setattr(self, name, dict(kept) if isinstance(kept, dict) else kept)
        self.time_s = self.now = max(time_s, state.time_s)
        self.grants = tuple(at_s for at_s in state.grants if self.now - at_s < RATE_WINDOW_S)
        self.cancels = state.cancels.at(self.now)

    def close(self) -> tuple[State, tuple[Action, ...]]:
        """Return the next state and the actions to carry out."""
        for name, changes in self._relisted.items():
            trainer = self.trainers.get(name)
            if trainer is not None:
                self.change(trainer, version=trainer.version + changes)
        # unchanged leases stay the same object: then nobody needs to look for changes in them
        if self.leases == self._before.leases:
            self.leases = self._before.leases  # type: ignore[assignment]
        return State(**{name: getattr(self, name) for name in _FIELDS}), tuple(self.actions)

    @property
    def may_grow(self) -> bool:
        """Whether anything may grow now: see `growth_allowed` and `halt`."""
        return growth_allowed(self.pool, self.now, self.settings) and not self.halt

    @property
    def halt(self) -> str:
        """The reason why nothing may grow whatever Slurm shows: all is paused, or it is not the hour; "" if none."""
        return growth_stops.halt(self.pauses, self.settings, self.now)

    @property
    def budget(self) -> int:
        """The number of pilots that may still be asked for in this minute (S8)."""
        return max(0, self.settings.slurm.submit_rate_per_min - len(self.grants))

    def class_of(self, node: str) -> str:
        """Return the class of a harvested node, "" if it is not known."""
        seen = self.pool.nodes.get(node)
        return seen.node_class if seen is not None else ""

    def leases_of(self, trainer: str) -> list[Lease]:
        """Return all leases of a trainer that have not ended, oldest first."""
        if not self._was_asked:
            self._was_asked = True
            return [lease for lease in self.leases.values() if lease.trainer == trainer]
        if self._of is None:
            self._of = defaultdict(dict)
            for lease in self.leases.values():
                self._of[lease.trainer][lease.id] = None
        return [self.leases[id_] for id_ in self._of.get(trainer, ())]

    def lease_on(self, node: str) -> Lease | None:
        """Return the lease of a node, even a revoked one."""
        if self._on is None:
            self._on = {lease.node: lease.id for lease in self.leases.values()}
        return self.leases.get(self._on.get(node, ""))

    def live_nodes(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that each trainer may keep, in the order in which it got them, for trainers with any."""
        nodes: dict[str, list[str]] = defaultdict(list)
        for lease in self.leases.values():
            if lease.live:
                nodes[lease.trainer].append(lease.node)
        return {trainer: tuple(names) for trainer, names in nodes.items()}

    def change(self, trainer: Trainer, **fields: Any) -> Trainer:
        """Replace fields of a trainer in the draft."""
        changed = _evolved(trainer, fields)
        self.trainers[trainer.id] = changed
        return changed

    def change_lease(self, lease: Lease, **fields: Any) -> Lease:
        """Replace fields of a lease in the draft."""
        changed = _evolved(lease, fields)
        self.leases[lease.id] = changed
        return changed

    def say(self, trainer: str | None, decision: Decision) -> None:
        """Record one decision."""
        if self.explain:
            self.actions.append(Decided(trainer, decision))

    def happened(
        self, kind: str, trainer: str | None = None, node: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record something for the ledger."""
        if self.explain:
            self.actions.append(Happened(kind, trainer, node, data or {}))

    def grant(self, trainer: str, node: PoolNode, reason: str, ends: StaggeredLimits | None = None) -> Lease:
        """Lend a free node to a trainer under a new lease id.

        `ends` are those of the trainer's pilots if they are to be staggered. They count only if nothing but the longest
        limit determines when this pilot ends.
        """
        self.sequence += 1
        longest_s = self.settings.pool.pilot_limit_s
        limit_s = longest_s if node.window_s is None else node.window_s
        limit_s = min(limit_s, growth_stops.longest_limit_s(self.settings, self.now))
        limit_s = whole_minutes(limit_s) if limit_s < longest_s or ends is None else ends.length_s()
        limit_s = min(limit_s, whole_minutes(longest_s))
        if ends is not None:
            ends.add(limit_s)
        lease = Lease(
            id=f"{node.name}.{self.sequence}",
            node=node.name,
            trainer=trainer,
            granted_s=self.now,
            limit_s=limit_s,
            reason=reason,
            gres=node.gres,
            gpus=node.gpus,
            partition=self._partition(trainer, node),
        )
        self.leases[lease.id] = lease
        self._on = None
        if self._of is not None:
            self._of[trainer][lease.id] = None
        self.grants += (self.now,)
        self._report("granted", lease, reason)
        return lease

    def _partition(self, trainer: str, node: PoolNode) -> str:
        """Return the partition to ask for the pilot in: the trainer's own, else the first harvested one."""
        kind = self.pool.classes.get(node.node_class)
        if kind is None or not kind.partitions:
            return ""
        wanted = self.trainers[trainer].request.partition
        return wanted if wanted in kind.partitions else kind.partitions[0]

    def revoke(self, lease: Lease, reason: str, vacate: bool) -> Lease:
        """Ask a node back; with `vacate` at once, because a regular job needs it.

        A graceful revocation may be followed by an immediate one, never the other way round.
        """
        if not lease.live and (lease.vacate or not vacate):
            return lease
        changed = self.change_lease(
            lease,
            revoked_s=lease.revoked_s if lease.revoked_s is not None else self.now,
            vacate=vacate,
            reason=reason,
            asked_back_s=lease.asked_back_s if lease.asked_back_s is not None or not vacate else self.now,
        )
        self._report("revoked", changed, reason)
        self.plan_due = True
        return changed

    def adopt(self, lease: Lease, job_id: str | None) -> Lease:
        """Take over a lease that its returning driver still has."""
        placed_s = lease.placed_s if lease.placed_s is not None else self.now
        phase: Phase = "placed" if lease.phase == "granted" and job_id else lease.phase
        changed = self.change_lease(lease, job_id=job_id or lease.job_id, placed_s=placed_s, phase=phase)
        self._report("adopted", changed, "the driver still has it")
        return changed

    def end(self, lease: Lease, reason: str, at_s: float | None = None) -> None:
        """Forget a lease whose node no longer works for its trainer, and measure how fast it was given back.

        `at_s` is when it ended, if that is known better. A give-back that had ended before anybody saw it begin has no
        duration, so it is not counted.
        """
        del self.leases[lease.id]
        if self._of is not None:
            del self._of[lease.trainer][lease.id]
        if lease.shown and not self.settings.trusting:
            if worked_well(lease, self.now):
                self.failures.pop(lease.node, None)
            self.ended[lease.node] = _evolved(lease, {"ended_s": self.now})
            if lease.placed_s is not None and (trainer := self.trainers.get(lease.trainer)) is not None:
                self.change(trainer, worked_s=trainer.worked_s + self.now - lease.placed_s)
        self._report("ended", lease, reason)
        ended_s = min(self.now, at_s) if at_s is not None else self.now
        if lease.asked_back_s is not None and lease.job_id is not None and ended_s > lease.asked_back_s:
            data = {"duration_s": ended_s - lease.asked_back_s, "lease": lease.id, "job_id": lease.job_id}
            self.happened("give_back", lease.trainer, lease.node, data)
        self.plan_due = True

    def cancel_pilot(self, lease: Lease, reason: str) -> None:
        """Have the daemon cancel the pilot of a lease, if Slurm shows one of that id and of the trainer's own user.

        The id is the driver's word: with operator rights a wrong one would end another user's job. A cancellation that
        failed is tried again only after CANCEL_AGAIN_S.
        """
        if lease.cancelled_s is not None and self.now - lease.cancelled_s <= CANCEL_AGAIN_S:
            return
        job = self.pool.elastic.get(lease.job_id or "")
        if job is not None and job.user == self.trainers[lease.trainer].user:
            self.actions.append(CancelPilot(job.id, lease.trainer, reason))
            self.change_lease(lease, cancelled_s=self.now)

    def back_off(self, node: str, user: str) -> None:
        """Leave a node out for a time that doubles with every refusal in a row, of any user's pilots.

        A refusal of one user alone keeps a node only for a moment from others, who may get it.
        """
        before = self.backoff.get(node, Backoff(self.now, 0, user))
        backoff = Backoff(self.now + doubling(before.count + 1), before.count + 1, user if before.user == user else "")
        if backoff.user and any(trainer.active and trainer.user != user for trainer in self.trainers.values()):
            backoff = replace(backoff, until_s=min(backoff.until_s, self.now + BACKOFF_ONE_USER_S))
        self.backoff[node] = backoff

    def most_nodes(self, trainer: Trainer, held: int) -> int:
        """Return the most nodes to plan for a trainer that holds `held`: fewer than it could use if Slurm refuses it.

        A trainer that was refused too often waits, then tries with as few nodes as it can, or twice what it has. So a
        user at a limit of Slurm's does not take nodes from others again and again. A trainer whose driver is silent
        could not use more.
        """
        if growth_stops.of_trainer(self.pauses, trainer):
            return trainer.sizes.largest(held)
        silent = is_silent(trainer, self.now, self.settings)
        if trainer.refused_rounds < REFUSED_ROUNDS and not silent:
            return trainer.sizes.high
        stays = trainer.sizes.largest(held)
        if silent or trainer.no_growth_until_s > self.now:
            return stays
        larger = trainer.sizes.above(held)
        return max(larger, trainer.sizes.largest(2 * held)) if larger > held else stays

    def backs_off(self, node: str) -> bool:
        """Whether a node is left out for now: it refused a pilot, or a job that Slurm preempts for counts on it."""
        return node in self.pool.counted_on or (node in self.backoff and self.backoff[node].until_s > self.now)

    def rest(self, node: str) -> None:
        """Leave a node alone that Slurm took a pilot from, since the job behind that may need another cycle to start.

        A new pilot there would lock the job out: Slurm does not preempt for the same job again for a while. This is a
        driver's word, so it concerns the driver's own node alone; Slurm's plan says which others the job counts on.
        """
        before = self.backoff.get(node, Backoff(self.now, 0))
        self.backoff[node] = replace(before, until_s=max(before.until_s, self.now + PREEMPTED_REST_S))

    def alarm(self, name: str, decision: Decision) -> None:
        """Raise an alarm that stays until an administrator reloads; it is reported once."""
        if name not in self.alarms:
            self.alarms[name] = sentence(decision)
            self.happened("alarm", data={"alarm": name, "text": self.alarms[name]})
            self.say(None, decision)

    def _report(self, kind: Any, lease: Lease, reason: str) -> None:
        self.actions.append(LeaseChanged(kind, lease, reason))
        self._relisted[lease.trainer] += 1


def growth_allowed(pool: PoolView, at_s: float, settings: Settings) -> bool:
    """Whether anything may grow at `at_s`: the pool does not forbid it, and the last snapshot is fresh (S9)."""
    return pool.hold is None and at_s - pool.time_s <= settings.pool.stale_after_s


def is_silent(trainer: Trainer, at_s: float, settings: Settings) -> bool:
    """Whether a trainer's driver has been silent for so long that it would leave newly lent nodes idle."""
    return at_s - trainer.heard_s > GRANT_SILENT_S and not settings.trusting


def worked_well(lease: Lease, at_s: float) -> bool:
    """Whether workers have trained on the node for so long by `at_s` that earlier failures there count no more."""
    return lease.shown and lease.working_s is not None and at_s - lease.working_s >= SOUND_AFTER_S


# A poll copies an object or two per lease and trainer. `python -m benchmarks.core --plain-replace` compares the copying
# below with `dataclasses.replace`: 14-19 % more polls a second with 200 trainers and 5,000 nodes, and no difference
# beyond its noise with 35 and 800.
def _slots(cls: type) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, Any]]:
    """Return a getter of all slots of a class at once, and their descriptors by name."""
    names = tuple(field.name for field in dataclass_fields(cls))
    return attrgetter(*names), {name: cls.__dict__[name] for name in names}


_SLOTS = {cls: _slots(cls) for cls in (Lease, Trainer)}
_PUT = type(Lease.__dict__["id"]).__set__


def _evolved(item: _Item, fields: Mapping[str, Any]) -> _Item:
    """Return the item with these fields; the item itself if nothing would change."""
    for name, value in fields.items():
        before = getattr(item, name)
        if before is not value and before != value:
            break
    else:
        return item
    return _copied(item, fields)


def _copied(item: _Item, fields: Mapping[str, Any]) -> _Item:
    """`dataclasses.replace` for slotted classes without checks of their own, several times as fast."""
    read, slots = _SLOTS[type(item)]
    evolved: _Item = object.__new__(type(item))
    deque(map(_PUT, slots.values(), repeat(evolved), read(item)), maxlen=0)
    for name, value in fields.items():
        _PUT(slots[name], evolved, value)
    return evolved


def doubling(count: int) -> float:
    """Return the seconds to wait after `count` failures in a row."""
    return float(min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(count - 1, 10)))
