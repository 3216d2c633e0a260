"""From a plan to leases granted and revoked, and the decisions that say why.

The map that results is always one that the plan allows: what is planned but not free yet waits for a later plan, and
a trainer that falls below nodes_min gives back what it has left (L4).
"""

from __future__ import annotations

from collections.abc import Mapping

from bftd.core import caps, sentences, timing
from bftd.core.domain import Assignment, Trainer
from bftd.core.turn import Turn


def carry_out(
    turn: Turn,
    assignment: Assignment,
    held: Assignment,
    curves: Mapping[str, sentences.Points],
    waiting: Mapping[str, str],
) -> None:
    """Revoke what the plan takes away, then grant what it gives and nobody still holds; `waiting` wait for a cap."""
    concerned = _concerned(turn, assignment, held)
    sizes = {trainer.id: len(held.get(trainer.id, ())) for trainer in concerned}
    growing = {t.id: t.name for t in concerned if len(assignment.get(t.id, ())) > sizes[t.id]}
    added = _grantable(turn, concerned, assignment, held)
    for trainer in concerned:
        mine, target = held.get(trainer.id, ()), set(assignment.get(trainer.id, ()))
        kept = [node for node in mine if node in target]
        # what is planned but not free yet does not make a size that the trainer can run on now (L4)
        kept = kept[: trainer.sizes.largest(len(kept) + len(added[trainer.id]))]
        if len(kept) < len(mine):
            stay = set(kept)
            dropped = [node for node in mine if node not in stay]
            others = [name for id_, name in growing.items() if id_ != trainer.id]
            why = waiting.get(trainer.id) or caps.exceeded(turn, held).get(trainer.id)
            why = why or _why_dropped(turn, trainer, len(mine), trainer.id in assignment, others)
            _drop(turn, trainer, mine, dropped, why)
    free = _free_nodes(turn, assignment) if turn.explain else 0
    full = caps.full(turn, assignment) if turn.explain else {}
    for trainer in concerned:
        if added[trainer.id]:
            _add(turn, trainer, sizes[trainer.id], added[trainer.id], curves[trainer.id])
        elif turn.explain and trainer.id in curves and len(assignment.get(trainer.id, ())) == sizes[trainer.id]:
            _explain_stay(turn, trainer, sizes[trainer.id], free, curves[trainer.id], full.get(trainer.id))
    for id_, why in waiting.items():
        _say_once(turn, turn.trainers[id_], why, f"{turn.trainers[id_].name} waits: {why}")


def _concerned(turn: Turn, assignment: Assignment, held: Assignment) -> list[Trainer]:
    """The active trainers that the plan speaks of or that hold nodes, in order of arrival."""
    if assignment.keys() >= held.keys():
        return [turn.trainers[trainer] for trainer in assignment]
    trainers = turn.trainers.values()
    return [trainer for trainer in trainers if trainer.active and (trainer.id in assignment or trainer.id in held)]


def _grantable(turn: Turn, trainers: list[Trainer], assignment: Assignment, held: Assignment) -> dict[str, list[str]]:
    """The planned nodes that can be lent now: nobody holds them, the budget lasts, and the size is allowed."""
    taken = {lease.node for lease in turn.leases.values()}
    left = turn.budget if turn.may_grow else 0
    added = {}
    for trainer in trainers:
        target = assignment.get(trainer.id, ())
        wanted = set(target)
        kept = sum(node in wanted for node in held.get(trainer.id, ()))
        free = [node for node in target if node not in taken][:left]
        added[trainer.id] = free[: max(0, trainer.sizes.largest(kept + len(free)) - kept)]
        left -= len(added[trainer.id])
    return added


def _why_dropped(turn: Turn, trainer: Trainer, held: int, admitted: bool, others: list[str]) -> str:
    if not admitted:
        return f"it is not among the first {turn.settings.pj_max} trainers"
    if held < trainer.sizes.low:
        return f"{sentences.nodes(held)} left, it needs {trainer.sizes.low}"
    return sentences.beneficiaries(others)


def _drop(turn: Turn, trainer: Trainer, held: tuple[str, ...], dropped: list[str], why: str) -> None:
    sentence = sentences.shrinkage(trainer, len(held), dropped, why) if turn.explain else ""
    gone = set(dropped)
    for lease in turn.leases_of(trainer.id):
        if lease.live and lease.node in gone:
            turn.revoke(lease, sentence, vacate=False)
    turn.say(trainer.id, sentence)
    turn.change(turn.trainers[trainer.id], said="")


def _add(turn: Turn, trainer: Trainer, held: int, added: list[str], points: sentences.Points) -> None:
    sentence = sentences.growth(trainer, held, added, points, turn.settings) if turn.explain else ""
    for name in added:
        turn.grant(trainer.id, turn.pool.nodes[name], sentence)
    turn.say(trainer.id, sentence)
    turn.change(turn.trainers[trainer.id], said="")


def _free_nodes(turn: Turn, assignment: Assignment) -> int:
    """How many nodes of the pool the plan leaves to nobody though they could be lent now."""
    used = {node for nodes in assignment.values() for node in nodes} | {lease.node for lease in turn.leases.values()}
    unused = (node.name for node in turn.pool.nodes.values() if node.in_pool and node.name not in used)
    return sum(not turn.backs_off(name) for name in unused)


def _explain_stay(
    turn: Turn, trainer: Trainer, held: int, free: int, points: sentences.Points, at_cap: str | None
) -> None:
    """Say once why a trainer below nodes_max does not take free nodes; `at_cap` is the cap that forbids it."""
    if held >= trainer.sizes.high or (held > 0 and not free):
        return
    stays = f"stays at {sentences.nodes(held)}" if held else "waits"
    if not turn.may_grow:
        key, text = "hold", f"{trainer.name} {stays}: {_why_no_growth(turn)}"
    elif trainer.refused_rounds >= timing.REFUSED_ROUNDS:
        key = "refused"
        text = f"{trainer.name} {stays}: its last pilots were refused, it tries again with few"
    elif at_cap:
        key, text = at_cap, f"{trainer.name} {stays}: {at_cap}"
    else:
        key, text = f"{held}:{free}", sentences.no_growth(trainer, held, free, points, turn.settings)
    _say_once(turn, trainer, key, text)


def _say_once(turn: Turn, trainer: Trainer, key: str, text: str) -> None:
    """Say something of a trainer unless `key` is what was said of it last."""
    if turn.explain and turn.trainers[trainer.id].said != key:
        turn.say(trainer.id, text)
        turn.change(turn.trainers[trainer.id], said=key)


def _why_no_growth(turn: Turn) -> str:
    if turn.pool.hold is not None:
        return turn.pool.hold
    if not turn.fresh:
        return "the last good snapshot of Slurm is too old"
    return "Slurm has just taken nodes back for a job, which may count on others too"
