"""Who is to have a first node whatever the objective says: one trainer of each user, within `first_node_within_s`.

The best plan for all together may leave a user with nothing for as long as the pool stays as it is. So half of that
time after a user's trainer came, or lost its last node, a plan has to give it its smallest size; the other half is for
nodes to be left at a step's end. Users who have nodes keep as many, or two of them would take turns on one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import milp
from bftd.core import sentences
from bftd.core.decisions import GetsFirst
from bftd.core.domain import Assignment, Trainer
from bftd.core.turn import Turn
from milp import Curve, Problem, TrainerSpec

# The part of `first_node_within_s` after which a plan no longer leaves a user without a node.
_INSIST_AFTER = 0.5
# The key of what is said of a trainer that is to have one.
_SAID = "first node"


def note(turn: Turn, held: Assignment) -> None:
    """Note since when each trainer has had as many nodes as it has."""
    for trainer in list(turn.trainers.values()):
        count = len(held.get(trainer.id, ()))
        if count != trainer.held:
            turn.change(trainer, held=count, held_since_s=turn.now)


def fall_due(turn: Turn) -> bool:
    """Whether somebody has begun to be due for a first node since the last plan was made."""
    after_s = _INSIST_AFTER * turn.settings.decide.first_node_within_s
    return any(
        turn.planned.time_s < trainer.held_since_s + after_s <= turn.now
        for trainer in turn.trainers.values()
        if trainer.active and not trainer.held
    )


def entitled(turn: Turn, held: Assignment, pool_size: int) -> tuple[Trainer, ...]:
    """One trainer of each user that has nodes or has waited for too long, as far as their smallest sizes fit together.

    Those that hold nodes come first, then those that wait, in order of arrival.
    """
    within_s = turn.settings.decide.first_node_within_s
    if not within_s:
        return ()
    of_user: dict[str, Trainer] = {}
    for trainer in turn.trainers.values():
        if not trainer.active or not (trainer.id in held or turn.most_nodes(trainer, 0)):
            continue
        if trainer.user not in of_user or (trainer.id in held and of_user[trainer.user].id not in held):
            of_user[trainer.user] = trainer
    holding = [trainer for trainer in of_user.values() if trainer.id in held]
    waiting = [trainer for trainer in of_user.values() if trainer.id not in held]
    late = [trainer for trainer in waiting if turn.now - trainer.held_since_s >= _INSIST_AFTER * within_s]
    found, left = [], pool_size
    for trainer in (*holding, *late):
        if trainer.sizes.low <= left:
            found.append(trainer)
            left -= trainer.sizes.low
    return tuple(found)


def said(turn: Turn, missing: Sequence[Trainer], assignment: Assignment) -> dict[str, str]:
    """Say who is to have a first node; returned is what others are told that give one up."""
    if not turn.explain:
        return {}
    for trainer in missing:
        if assignment[trainer.id] and turn.trainers[trainer.id].said != _SAID:
            waited_s, within_s = turn.now - trainer.held_since_s, turn.settings.decide.first_node_within_s
            turn.say(trainer.id, GetsFirst(trainer.name, waited_s, within_s))
            turn.change(turn.trainers[trainer.id], said=_SAID)
    why = sentences.first_nodes([trainer.name for trainer in missing if assignment[trainer.id]])
    return dict.fromkeys(assignment, why)


def insisted(problem: Problem, names: Collection[str]) -> Problem:
    """The same problem in which some node for each of these trainers is worth more than what others lose by it."""
    weighed = [trainer for trainer in problem.trainers if trainer.name in names]
    bonus = 2.0 * _worth_of_one(problem.trainers, problem.t_fwd_s) * max(trainer.nodes_min for trainer in weighed)
    mine = {trainer.name: _raised(trainer, bonus) for trainer in weighed}
    return replace(problem, trainers=tuple(mine.get(trainer.name, trainer) for trainer in problem.trainers))


def _worth_of_one(trainers: Sequence[TrainerSpec], t_fwd_s: float) -> float:
    """At least what giving up one node costs whoever has it, were it the only one, and the stall besides."""
    worth = (
        max(max(curve.values) for curve in (trainer.curve, *trainer.class_curves.values()))
        * trainer.weight
        * (1.0 + (trainer.up_cost_s + trainer.down_cost_s) / t_fwd_s)
        for trainer in trainers
    )
    return max(worth, default=0.0) or 1.0


def _raised(trainer: TrainerSpec, bonus: float) -> TrainerSpec:
    """The trainer with every size that it can run on worth so much more."""
    curve, weight = trainer.curve, trainer.weight
    now = curve(len(trainer.current)) * weight
    share = now / (now + bonus)  # its stalls cost what they did, though it is said to make more
    return replace(
        trainer,
        curve=_lifted(curve, trainer.nodes_min, weight, bonus),
        class_curves={
            name: _lifted(each, trainer.nodes_min, weight, bonus) for name, each in trainer.class_curves.items()
        },
        weight=1.0,
        up_cost_s=trainer.up_cost_s * share,
        down_cost_s=trainer.down_cost_s * share,
    )


def _lifted(curve: Curve, low: int, weight: float, bonus: float) -> Curve:
    points = {low: curve(low)} | {
        nodes: value for nodes, value in zip(curve.nodes, curve.values, strict=True) if nodes > low
    }
    return milp.Curve((0, *points), (0.0, *(value * weight + bonus for value in points.values())))
