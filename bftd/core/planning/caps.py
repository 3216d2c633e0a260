"""Caps per user and per account: the trainers that take part in a plan, and the most nodes of their users and accounts.

A trainer's owner comes from Slurm: the user by the caller's uid, the account by the job (`read_accounts`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import milp
from bftd.base.format import some
from bftd.core.model import classes, growth_stops, messages
from bftd.core.model.domain import Assignment, Settings, State, Trainer
from bftd.core.model.draft import Draft, is_silent

# At most this many of the trainers that come before another are named.
NAMED_MOST = 3


@dataclass(frozen=True, slots=True)
class CapGroup:
    """All trainers of one user, or of one account."""

    kind: Literal["user", "account"]
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "user" else f"account {self.name}"


class Quota:
    """The amount of something that each user and each account may still have. A cap of 0 means no cap."""

    def __init__(self, what: str, per_user: int, per_account: int) -> None:
        self.what = what
        self.caps = {"user": per_user, "account": per_account}
        self.taken: Counter[CapGroup] = Counter()

    def take(self, trainer: Trainer, count: int) -> None:
        """Count `count` towards the caps of a trainer's user and account."""
        for group in self.groups(trainer):
            self.taken[group] += count

    def left(self, trainer: Trainer) -> float:
        """Return the most that the trainer may still take: infinity without a cap, negative if a cap is exceeded."""
        return min((self.caps[group.kind] - self.taken[group] for group in self.groups(trainer)), default=inf)

    def reached(self, trainer: Trainer, more: int = 1) -> str | None:
        """Name the cap that keeps the trainer from having `more`, in a sentence; None if no cap does."""
        for group in self.groups(trainer):
            if self.taken[group] + more > self.caps[group.kind]:
                return self.sentence(group)
        return None

    def sentence(self, group: CapGroup) -> str:
        """Say that a user or an account is at its cap."""
        most = self.caps[group.kind]
        things = self.what.removesuffix("s") if most == 1 else self.what
        return f"{group} may have at most {most} {things} here"

    def groups(self, trainer: Trainer) -> list[CapGroup]:
        """Return the capped groups that the trainer belongs to."""
        found = []
        if self.caps["user"]:
            found.append(CapGroup("user", trainer.user))
        if self.caps["account"] and trainer.account:
            found.append(CapGroup("account", trainer.account))
        return found


def node_quota(settings: Settings) -> Quota:
    """Return the caps on nodes, with nothing taken."""
    return Quota("nodes", settings.limits.nodes_per_user, settings.limits.nodes_per_account)


def trainer_quota(settings: Settings) -> Quota:
    """Return the caps on trainers, with nothing taken."""
    return Quota("trainers", settings.limits.trainers_per_user, settings.limits.trainers_per_account)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why no plan is made for a trainer; it is reported again only when `key` changes."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict of the caps before a plan is made.

    `admitted` are the trainers that the plan is made for, in the order of their turns. `waiting` says why others wait;
    trainers that only lack a place are left out if nothing is explained. `most` has the most nodes that each admitted
    trainer may get, and `limits` the caps that bind several of them together. `exceeded` names the trainers whose user
    or account already holds too many nodes, each with a sentence; it is empty if nothing is explained.
    """

    admitted: Sequence[Trainer]
    waiting: Mapping[str, Waiting]
    most: Mapping[str, int]
    limits: tuple[milp.Cap, ...]
    exceeded: Mapping[str, str]


def rule(turn: Draft, held: Assignment, pool_size: int, entitled: Collection[str] = ()) -> Ruling:
    """Apply the caps before a plan for the draft, whose trainers hold the nodes `held` of a pool of `pool_size` nodes.

    Trainers that are `entitled` to a first node need no place under pj_max.
    """
    admitted, waiting = _admit(turn, held, entitled)
    wanted = [(trainer, turn.most_nodes(trainer, len(held.get(trainer.id, ())))) for trainer in admitted]
    most, limits = _in_problem(wanted, pool_size, turn.settings)
    exceeded = _over(turn, held, more=0) if turn.explain else {}
    return Ruling(admitted, waiting, most, limits, exceeded)


def full(turn: Draft, assignment: Assignment) -> dict[str, str]:
    """Return a sentence for each trainer that a cap keeps from its next larger size once `assignment` holds."""
    return _over(turn, assignment, more=1)


def _admit(turn: Draft, held: Assignment, entitled: Collection[str]) -> tuple[list[Trainer], dict[str, Waiting]]:
    """Return the trainers that a plan is made for, and the reasons why others wait.

    Places under pj_max go round by round over the users: first each user's first trainer, then each one's second. Users
    take their turns in the order in which their first trainers came, so that nothing changes until a trainer comes or
    goes. A trainer is passed over if its user or account has enough trainers, or if something keeps it from any node:
    the trainers behind it may then go ahead.
    """
    most, quota = turn.settings.decide.pj_max, trainer_quota(turn.settings)
    admitted: list[Trainer] = []
    waiting: dict[str, Waiting] = {}
    queues: dict[str, deque[Trainer]] = {}
    for trainer in turn.trainers.values():
        if not trainer.active:
            continue
        if out := _out(turn, trainer, holds=trainer.id in held):
            waiting[trainer.id] = out
        else:
            queues.setdefault(trainer.user, deque()).append(trainer)
    in_line = 0
    while queues:
        for user, queue in list(queues.items()):
            while queue:
                trainer = queue.popleft()
                if why := quota.reached(trainer):
                    waiting[trainer.id] = Waiting(why, why)
                    continue
                if len(admitted) < most or trainer.id in entitled:
                    quota.take(trainer, 1)
                    admitted.append(trainer)
                elif turn.explain:
                    waiting[trainer.id] = Waiting("place", messages.no_place(most, called(admitted, most + in_line)))
                    in_line += 1
                break
            if not queue:
                del queues[user]
    return admitted, waiting


def _out(known: State | Draft, trainer: Trainer, *, holds: bool) -> Waiting | None:
    """Return why a trainer takes no place: no node will ever do, or it holds none and is paused or silent."""
    request = trainer.request
    if why := classes.unmet(known.pool.classes, request.requirements, request.partition, request.sizes.low):
        return Waiting(why, why)
    if holds:
        return None
    if pause := growth_stops.of_trainer(known.pauses, trainer):
        why = growth_stops.text(pause)
        return Waiting(why, why)
    return Waiting("silent", messages.SILENT) if is_silent(trainer, known.time_s, known.settings) else None


def called(trainers: Sequence[Trainer], count: int) -> str:
    """Return the names of `count` trainers, `trainers` being the first: a few names, and how many more there are."""
    named = [f"{trainer.name} ({trainer.user})" for trainer in trainers[: min(count, NAMED_MOST)]]
    return some(named, count, NAMED_MOST)


def _in_problem(
    wanted: Sequence[tuple[Trainer, int]], pool_size: int, settings: Settings
) -> tuple[dict[str, int], tuple[milp.Cap, ...]]:
    """Return the caps on nodes as a problem takes them: each trainer's most nodes, and the caps on several together.

    `wanted` has the trainers with the most nodes that each could use. A cap that cannot bind is left out, and a cap on
    a single trainer becomes a smaller nodes_max: only the remaining caps need a solver that knows caps.
    """
    quota = node_quota(settings)
    members: dict[CapGroup, list[tuple[Trainer, int]]] = {}
    for trainer, most in wanted:
        for group in quota.groups(trainer):
            members.setdefault(group, []).append((trainer, most))
    most_of = {trainer.id: most for trainer, most in wanted}
    shared = []
    for group, covered in members.items():
        cap = quota.caps[group.kind]
        for trainer, _ in covered:
            if most_of[trainer.id] > cap:
                most_of[trainer.id] = trainer.sizes.largest(cap)
    for group, covered in members.items():
        cap = quota.caps[group.kind]
        users = [trainer for trainer, _ in covered if most_of[trainer.id]]
        if len(users) > 1 and cap < min(pool_size, sum(most_of[trainer.id] for trainer in users)):
            shared.append(milp.Cap(cap, **{group.kind: group.name}))
    return most_of, tuple(shared)


def _over(turn: Draft, nodes: Assignment, more: int) -> dict[str, str]:
    """Return a sentence for each trainer that a cap denies its present nodes, or with `more` its next larger size."""
    quota = node_quota(turn.settings)
    if not any(quota.caps.values()):
        return {}
    for id_, names in nodes.items():
        quota.take(turn.trainers[id_], len(names))
    found = {}
    for trainer in turn.trainers.values():
        have = len(nodes.get(trainer.id, ()))
        extra = trainer.sizes.above(have) - have if more else 0
        if trainer.active and (why := quota.reached(trainer, extra)):
            found[trainer.id] = why
    return found


def read_accounts(turn: Draft) -> None:
    """Read from the view the account that each trainer runs on: that of its job, else that of its oldest pilot.

    Only jobs of the trainer's own user count, because a driver could claim any id as its own or as its pilots'.
    """
    of_pilots: dict[str, str] = {}
    for lease in turn.leases.values():
        job = turn.pool.elastic.get(lease.job_id or "")
        if job is not None and job.account and job.user == turn.trainers[lease.trainer].user:
            of_pilots.setdefault(lease.trainer, job.account)
    for trainer in list(turn.trainers.values()):
        account = account_of(turn, trainer) or of_pilots.get(trainer.id, "")
        if account and account != trainer.account and trainer.active:
            turn.change(trainer, account=account)
            turn.plan_due = True


def account_of(turn: Draft, trainer: Trainer) -> str:
    """Return the account of the trainer's own job; "" if it is not a job or the last view does not show it."""
    user, account = turn.pool.accounts.get(trainer.id, ("", ""))
    return account if user == trainer.user else ""


def at_caps(state: State) -> list[dict[str, Any]]:
    """Return the users and accounts that have reached a cap, as `bft status` shows them."""
    nodes, trainers = node_quota(state.settings), trainer_quota(state.settings)
    holders = {lease.trainer for lease in state.leases.values() if lease.live}
    for lease in state.leases.values():
        if lease.live:
            nodes.take(state.trainers[lease.trainer], 1)
    for trainer in state.trainers.values():
        if trainer.active and _out(state, trainer, holds=trainer.id in holders) is None:
            trainers.take(trainer, 1)
    return [
        {"kind": group.kind, "name": group.name, "of": quota.what, "cap": quota.caps[group.kind], "used": used}
        | {"text": _with_waiting(quota, group, used)}
        for quota in (nodes, trainers)
        for group, used in quota.taken.items()
        if used >= quota.caps[group.kind]
    ]


def _with_waiting(quota: Quota, group: CapGroup, used: int) -> str:
    over = used - quota.caps[group.kind]
    return quota.sentence(group) + (f", {over} more wait{'s' if over == 1 else ''}" if over > 0 else "")
