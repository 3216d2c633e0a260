"""Execution of a plan: leases are granted and revoked, with decisions that say why.

The map that results is always one that the plan allows: nodes that are planned but not free yet wait for a later plan,
and a trainer that falls below nodes_min gives back what it has left (L4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from operator import attrgetter

import milp
from bftd.core.model import classes, growth_stops, messages, timing
from bftd.core.model.decisions import Decision, Grew, Keeps, Resumed, Shrank, Started, Stays, Suspended, Waits
from bftd.core.model.domain import Assignment, Trainer
from bftd.core.model.draft import Draft, is_silent
from bftd.core.model.staggered_limits import StaggeredLimits
from bftd.core.planning import caps
from bftd.core.planning.caps import Ruling
from bftd.core.planning.node_order import working_first
from bftd.core.scaling import learning
from milp import Points


def carry_out(
    turn: Draft,
    assignment: Assignment,
    held: Assignment,
    curves: Mapping[str, Points],
    ruling: Ruling,
    because: Mapping[str, str],
) -> None:
    """Revoke what the plan takes away, then grant what it gives and nobody still holds.

    `because` says why trainers get fewer nodes, if the reason is not simply that others gain more.
    """
    concerned = _concerned(turn, assignment, held)
    sizes = {trainer.id: len(held.get(trainer.id, ())) for trainer in concerned}
    growing = [t.id for t in concerned if len(assignment.get(t.id, ())) > sizes[t.id]]
    added, later = _grantable(turn, concerned, assignment, held)
    for trainer in concerned:
        mine, planned = held.get(trainer.id, ()), assignment.get(trainer.id, ())
        if planned == mine and trainer.sizes.allows(len(mine)):
            continue
        target = set(planned)
        kept = [node for node in mine if node in target]
        # nodes that are planned but not free yet do not make a size that the trainer can run on now (L4)
        most = trainer.sizes.largest(len(kept) + len(added[trainer.id]))
        kept = kept if most >= len(kept) else working_first(turn, kept)[:most]
        if len(kept) < len(mine):
            stay = set(kept)
            dropped = [node for node in mine if node not in stay]
            decision = None
            if turn.explain:
                others = [id_ for id_ in growing if id_ != trainer.id]
                waits = ruling.waiting.get(trainer.id)
                why = waits.why if waits else ruling.exceeded.get(trainer.id)
                why = why or because.get(trainer.id)
                why = why or _why_dropped(turn, trainer, len(mine), {id_: len(assignment[id_]) for id_ in others})
                decision = _shrinkage(trainer, len(mine), dropped, why)
            _drop(turn, trainer, dropped, decision)
    free = _free_nodes(turn, assignment) if turn.explain else Counter[str]()
    holders = _holders(turn, assignment) if turn.explain else []
    full = _paused(turn, concerned) | caps.full(turn, assignment) if turn.explain else {}
    for trainer in concerned:
        if new := added[trainer.id]:
            points = curves[trainer.id]
            decision = _growth(turn, trainer, sizes[trainer.id], new, points) if turn.explain else None
            _add(turn, trainer, new, decision)
            if trainer.resumed_s is None:
                turn.change(turn.trainers[trainer.id], resume_lent_s=turn.now)
        elif turn.explain and trainer.id in later:
            why_later = messages.resumes_later(turn.settings.decide.resumes_at_once)
            _say_once(turn, trainer, why_later, Waits(trainer.name, why_later))
        elif turn.explain and trainer.id in curves and len(assignment.get(trainer.id, ())) == sizes[trainer.id]:
            more = _free_for(turn, trainer, held.get(trainer.id, ()), free)
            why = full.get(trainer.id)
            _explain_stay(turn, trainer, sizes[trainer.id], more, holders, curves[trainer.id], why)
    if turn.explain:
        for id_, waits in ruling.waiting.items():
            _say_once(turn, turn.trainers[id_], waits.key, Waits(turn.trainers[id_].name, waits.why))


def _concerned(turn: Draft, assignment: Assignment, held: Assignment) -> list[Trainer]:
    """Return the active trainers that the plan speaks of or that hold nodes."""
    if assignment.keys() >= held.keys():
        return [turn.trainers[trainer] for trainer in assignment]
    trainers = turn.trainers.values()
    return [trainer for trainer in trainers if trainer.active and (trainer.id in assignment or trainer.id in held)]


def _paused(turn: Draft, trainers: list[Trainer]) -> dict[str, str]:
    """Return why paused trainers do not grow beyond what they hold."""
    paused = ((trainer.id, growth_stops.of_trainer(turn.pauses, trainer)) for trainer in trainers)
    return {id_: growth_stops.text(pause) for id_, pause in paused if pause is not None}


def _grantable(
    turn: Draft, trainers: list[Trainer], assignment: Assignment, held: Assignment
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the planned nodes that can be lent now: nobody holds them, the budget lasts, and the size is allowed.

    Also return the trainers that could resume, except for the bound on how many load checkpoints at once: the nodes
    planned for them wait for a later plan. Of trainers that resume, those whose users have nodes come last, then those
    that were lent nodes most recently: a trainer that is lent nodes and gives them back without training would
    otherwise have every turn.
    """
    taken = set(map(attrgetter("node"), turn.leases.values()))
    taken.update(node.name for node in turn.pool.nodes.values() if node.co_located)
    left = turn.budget if turn.may_grow else 0
    added: dict[str, list[str]] = {}
    later: set[str] = set()
    most, having = turn.settings.decide.resumes_at_once, {turn.trainers[id_].user for id_ in held}
    resumes = {trainer.id for trainer in trainers if trainer.resumed_s is None and trainer.id not in held}
    places = most - len(_loading(turn)) if most and resumes else len(trainers)
    line = {id_: (turn.trainers[id_].user in having, turn.trainers[id_].resume_lent_s) for id_ in resumes}
    for trainer in sorted(trainers, key=lambda one: line.get(one.id, (False, -inf))):
        target = assignment.get(trainer.id, ())
        if target == held.get(trainer.id, ()):  # true for most trainers in most plans
            added[trainer.id] = []
            continue
        wanted = set(target)
        kept = sum(node in wanted for node in held.get(trainer.id, ()))
        free = [node for node in target if node not in taken][:left]
        more = max(0, trainer.sizes.largest(kept + len(free)) - kept)
        # Slurm preempts the oldest pilots first: in this order those that it would take first without pilots
        added[trainer.id] = free[:more][::-1]
        if trainer.id in resumes and added[trainer.id]:
            if places <= 0:
                added[trainer.id] = []
                later.add(trainer.id)
            places -= 1
        left -= len(added[trainer.id])
    return added, later


def _loading(turn: Draft) -> set[str]:
    """Return the suspended trainers that were lent nodes not long ago and do not train there yet."""
    lent = [lease for lease in turn.leases.values() if lease.live and turn.trainers[lease.trainer].resumed_s is None]
    late = {lease.trainer for lease in lent if turn.now - lease.granted_s >= timing.LOADS_MOST_S}
    return {lease.trainer for lease in lent} - late


def _why_dropped(turn: Draft, trainer: Trainer, held: int, growing: Mapping[str, int]) -> str:
    """Return why a trainer loses nodes to those that are `growing`, each to a number of nodes."""
    if held < trainer.sizes.low:
        return messages.too_few_left(held, trainer.sizes.low)
    if held > trainer.sizes.high:
        return messages.above_most(trainer.sizes.high)
    others = [turn.trainers[id_] for id_ in growing]
    names = [other.name for other in others]
    start = bool(others) and all(growing[other.id] == other.sizes.low for other in others)
    return messages.newcomers(names) if start else messages.beneficiaries(names)


def _drop(turn: Draft, trainer: Trainer, dropped: list[str], decision: Decision | None) -> None:
    """Take nodes from a trainer because of the plan alone."""
    reason = messages.sentence(decision) if decision else ""
    gone = set(dropped)
    for lease in turn.leases_of(trainer.id):
        if lease.live and lease.node in gone:
            turn.revoke(lease, reason, vacate=False)
    _say_anew(turn, trainer, decision)


def _add(turn: Draft, trainer: Trainer, added: list[str], decision: Decision | None) -> None:
    """Lend a trainer free nodes."""
    reason = messages.sentence(decision) if decision else ""
    ends = _ends(turn, trainer, len(added))
    for name in added:
        turn.grant(trainer.id, turn.pool.nodes[name], reason, ends)
    _say_anew(turn, trainer, decision)


def _ends(turn: Draft, trainer: Trainer, added: int) -> StaggeredLimits | None:
    """Return the staggered ends of a trainer's pilots; None if it could not go on without a group of them.

    Such a trainer would be suspended for each group instead of once. Simulated pilots have no limits.
    """
    if turn.settings.trusting:
        return None
    leases = [lease for lease in turn.leases_of(trainer.id) if lease.live]
    nodes = len(leases) + added
    if not trainer.sizes.largest(nodes - StaggeredLimits.together(nodes)):
        return None
    return StaggeredLimits((lease.end_s for lease in leases), turn.now, turn.settings.pool.pilot_limit_s)


def _say_anew(turn: Draft, trainer: Trainer, decision: Decision | None) -> None:
    """Report a change of a trainer's nodes, after which its next reason to stay as it is may be reported again."""
    if decision:
        turn.say(trainer.id, decision)
    turn.change(turn.trainers[trainer.id], last_reason="")


def _shrinkage(trainer: Trainer, held: int, dropped: list[str], why: str) -> Decision:
    """Return the decision about a trainer that gives back nodes because of the plan alone."""
    if len(dropped) == held:
        return Suspended(trainer.name, tuple(dropped), why)
    return Shrank(trainer.name, held, tuple(dropped), why)


def _growth(turn: Draft, trainer: Trainer, held: int, added: list[str], points: Points) -> Decision:
    """Return the decision about a trainer that gets nodes."""
    after = held + len(added)
    known = trainer.knowledge.rate_per_node is not None
    seen = any(size == after for size, _ in trainer.knowledge.seen)
    if known and trainer.knowledge.by_class and not trainer.request.requirements.mix:
        points = learning.curve(trainer.knowledge, trainer.sizes.high, node_class=turn.class_of(added[0]))
    rate = milp.interpolate(points, after)
    if held < trainer.sizes.low:
        kind = Resumed if trainer.state == "suspended" else Started
        on = _class_names(turn, added)
        return kind(trainer.name, after, tuple(added), rate if known else None, seen, on)
    gain = rate - milp.interpolate(points, held) if known else None
    stall_s = trainer.knowledge.up_cost_s(held)
    return Grew(trainer.name, held, tuple(added), gain, seen, turn.settings.decide.t_fwd_s, stall_s)


def _class_names(turn: Draft, nodes: Sequence[str]) -> str:
    """Return the classes of some nodes in words, "" if all harvested nodes are of one class."""
    if len(turn.pool.classes) < 2:
        return ""
    return " and ".join(sorted({turn.class_of(node) for node in nodes}))


def _free_nodes(turn: Draft, assignment: Assignment) -> Counter[str]:
    """Count the nodes of each class of the pool that could be lent now and that the plan leaves unused."""
    used = {node for nodes in assignment.values() for node in nodes} | {lease.node for lease in turn.leases.values()}
    known = turn.pool.nodes.values()
    unused = (node for node in known if node.in_pool and not node.co_located and node.name not in used)
    return Counter(node.node_class for node in unused if not turn.backs_off(node.name))


def _free_for(turn: Draft, trainer: Trainer, held: Sequence[str], free: Counter[str]) -> int:
    """Return how many of the free nodes a trainer could have beside those that it holds."""
    known = turn.pool.classes
    if not known:
        return free.total()
    names = classes.usable(known, trainer.request.requirements, trainer.request.partition)
    if trainer.request.requirements.mix:
        return sum(free[name] for name in names)
    if held:
        names = tuple({turn.class_of(node) for node in held})
    return max((free[name] for name in names), default=0)


def _holders(turn: Draft, assignment: Assignment) -> list[tuple[Trainer, int]]:
    """Return the trainers that have nodes once the plan is carried out, in the order of their turns, and how many."""
    return [(turn.trainers[id_], len(nodes)) for id_, nodes in assignment.items() if nodes]


def _named(trainer: Trainer, holders: Sequence[tuple[Trainer, int]]) -> list[tuple[Trainer, int]]:
    """Return the first few holders: those of the trainer's own user, who may end them, come first."""
    own = [holder for holder in holders if holder[0].user == trainer.user][: caps.NAMED_MOST]
    others = (holder for holder in holders if holder[0].user != trainer.user)
    return [*own, *islice(others, caps.NAMED_MOST - len(own))]


def _held(turn: Draft, trainer: Trainer, held: int) -> str:
    """Say how many nodes a trainer has, and since when it has that many."""
    since_s = max((lease.granted_s for lease in turn.leases_of(trainer.id) if lease.live), default=turn.now)
    if trainer.held == held:  # noted at the next plan, but a new pilot in an old one's place changes nothing there
        since_s = min(since_s, trainer.held_since_s)
    since = messages.since(since_s, turn.now, turn.settings.zone)
    return messages.holds(trainer.id, trainer.name, trainer.user, held, since)


def _explain_stay(
    turn: Draft,
    trainer: Trainer,
    held: int,
    free: int,
    holders: Sequence[tuple[Trainer, int]],
    points: Points,
    at_cap: str | None,
) -> None:
    """Report once why a trainer below nodes_max does not take free nodes.

    `holders` are the trainers that have nodes, with how many, and `at_cap` is the cap that forbids the trainer more.
    """
    bound = turn.pool.bound if free < trainer.sizes.above(held) - held else ""
    if held >= trainer.sizes.high or (held > 0 and not free and not bound):
        return
    if not turn.may_grow:
        key, decision = turn.halt or "hold", _stay(trainer, held, _why_no_growth(turn))
    elif is_silent(trainer, turn.now, turn.settings):
        key, decision = "silent", _stay(trainer, held, messages.SILENT)
    elif trainer.refused_rounds >= timing.REFUSED_ROUNDS:
        key, decision = "refused", _stay(trainer, held, messages.REFUSED)
    elif at_cap:
        key, decision = at_cap, _stay(trainer, held, at_cap)
    elif turn.unsolved:
        key, decision = "unsolved", _stay(trainer, held, messages.unsolved(turn.unsolved))
    elif bound:
        key, decision = bound, _stay(trainer, held, bound)
    elif turn.pool.counted_on and free < trainer.sizes.above(held) - held:
        key, decision = "settling", _stay(trainer, held, messages.SETTLING)
    else:
        named = _named(trainer, holders) if held == 0 and free < trainer.sizes.low else []
        key = ":".join((str(held), str(free), *sorted(holder.id for holder, _ in named)))
        if key == turn.trainers[trainer.id].last_reason:  # no words for what is said already: many may wait
            return
        decision = _no_growth(turn, trainer, held, free, named, len(holders), points)
    _say_once(turn, trainer, key, decision)


def _stay(trainer: Trainer, held: int, why: str) -> Decision:
    return Stays(trainer.name, held, why) if held else Waits(trainer.name, why)


def _no_growth(
    turn: Draft,
    trainer: Trainer,
    held: int,
    free: int,
    named: Sequence[tuple[Trainer, int]],
    holders: int,
    points: Points,
) -> Decision:
    """Return why a trainer does not take free nodes that it may have: they are too few, or would not pay.

    If they are too few, the first of the `holders` of the others are `named`, each with its number of nodes.
    """
    if held == 0 and free < trainer.sizes.low:
        told = [_held(turn, *holder) for holder in named]
        return Waits(trainer.name, messages.too_few_free(free, trainer.sizes.low, told, holders))
    most = min(trainer.sizes.high, held + free)
    gain = milp.interpolate(points, most) - milp.interpolate(points, held)
    stall_s = trainer.knowledge.up_cost_s(held)
    return Keeps(trainer.name, held, most - held, gain, turn.settings.decide.t_fwd_s, stall_s)


def _say_once(turn: Draft, trainer: Trainer, key: str, decision: Decision) -> None:
    """Report a decision about a trainer unless `key` is that of the last one."""
    if turn.trainers[trainer.id].last_reason != key:
        turn.say(trainer.id, decision)
        turn.change(turn.trainers[trainer.id], last_reason=key)


def _why_no_growth(turn: Draft) -> str:
    if turn.halt:
        return turn.halt
    if turn.pool.hold is not None:
        return turn.pool.hold
    return messages.STALE
