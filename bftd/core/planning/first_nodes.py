"""First nodes whatever the objective says: one trainer of each user gets some within `first_node_within_s`.

The best plan for all together may leave a user with nothing for as long as the pool stays as it is. So half of that
time after a user's trainer came, or lost its last node, a plan has to give it its smallest size. The other half is for
other trainers to leave nodes at a step's end. Users who have nodes keep as many, or two users would take turns on one
node.

Of plans that are nearly as good, the one in which fewer trainers wait is taken, whoever their users are: to have nodes
is worth as much to a trainer as a fifth of one node. That is so with nodes and without, so a plan that replaces another
always brings more, and no two replace each other again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from bftd.core.model import messages
from bftd.core.model.decisions import GetsFirst
from bftd.core.model.domain import Assignment, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.timing import REFUSED_ROUNDS
from milp import Curve, Problem, TrainerSpec

# The part of `first_node_within_s` after which a plan no longer leaves a user without a node.
_INSIST_AFTER = 0.5
# The worth of having nodes to a trainer, in parts of what it makes on one: so much at most is lost for each that need
# not wait. To move a node to one costs its warm-up and others' stalls: about 0.15 on pools of a few nodes, where
# nothing else may free one for hours.
BONUS = 0.2
# The key of the decision about a trainer that is to have a first node.
_REASON = "first node"


def note(turn: Draft, held: Assignment) -> None:
    """Note since when each trainer has had its present number of nodes."""
    for trainer in list(turn.trainers.values()):
        count = len(held.get(trainer.id, ()))
        if count != trainer.held:
            turn.change(trainer, held=count, held_since_s=turn.now)


def fall_due(turn: Draft) -> bool:
    """Whether a trainer has become due for a first node since the last plan was made."""
    after_s = _INSIST_AFTER * turn.settings.decide.first_node_within_s
    return any(
        turn.planned.time_s < trainer.held_since_s + after_s <= turn.now
        for trainer in turn.trainers.values()
        if trainer.active and not trainer.held
    )


def entitled(turn: Draft, held: Assignment, pool_size: int) -> tuple[Trainer, ...]:
    """Return one trainer of each user who has nodes or has waited too long, as far as their smallest sizes fit.

    Trainers that hold nodes come first, then those that wait, in order of arrival. A trainer that is paused or silent,
    or whose pilots were refused, has no such claim.
    """
    within_s = turn.settings.decide.first_node_within_s
    if not within_s:
        return ()
    of_user: dict[str, Trainer] = {}
    for trainer in turn.trainers.values():
        refused = trainer.refused_rounds >= REFUSED_ROUNDS or not turn.most_nodes(trainer, 0)
        if not trainer.active or (refused and trainer.id not in held):
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


def left_out(entitled: Sequence[Trainer], trainers: Sequence[Trainer], assignment: Assignment) -> list[Trainer]:
    """Return the entitled trainers whose users a plan would leave with nothing."""
    having = {trainer.user for trainer in trainers if assignment.get(trainer.id)}
    return [trainer for trainer in entitled if trainer.user not in having and trainer.id in assignment]


def least(entitled: Sequence[Trainer], trainers: Sequence[Trainer], assignment: Assignment) -> dict[str, int]:
    """Return the least nodes of one trainer per entitled user, of one that gets nodes anyway if there is any."""
    chosen = {trainer.user: trainer for trainer in entitled}
    for trainer in trainers:
        mine = chosen.get(trainer.user)
        if mine is not None and assignment.get(trainer.id) and not assignment.get(mine.id):
            chosen[trainer.user] = trainer
    return {trainer.id: trainer.sizes.low for trainer in chosen.values()}


def reasons(turn: Draft, missing: Sequence[Trainer], assignment: Assignment) -> dict[str, str]:
    """Report the trainers that are to have a first node. Returns the reason for trainers that give nodes up."""
    if not turn.explain:
        return {}
    for trainer in missing:
        if assignment[trainer.id] and turn.trainers[trainer.id].last_reason != _REASON:
            waited_s, within_s = turn.now - trainer.held_since_s, turn.settings.decide.first_node_within_s
            turn.say(trainer.id, GetsFirst(trainer.name, waited_s, within_s))
            turn.change(turn.trainers[trainer.id], last_reason=_REASON)
    why = messages.first_nodes([trainer.name for trainer in missing if assignment[trainer.id]])
    return dict.fromkeys(assignment, why)


def favoured(trainer: TrainerSpec, earns_now: float) -> TrainerSpec:
    """Return the trainer with a bonus on every size that it can run on; it `earns_now` on its present nodes."""
    bonus = BONUS * trainer.curve(1) * trainer.weight
    return _raised(trainer, trainer.nodes_min, bonus, earns_now) if bonus > 0 else trainer


def insisted(problem: Problem, least: Mapping[str, int]) -> Problem:
    """Return the problem with a bonus for giving trainers their `least` nodes, larger than what others lose by it."""
    worth = [(max(trainer.curve.values), trainer.curve(len(trainer.current)), trainer) for trainer in problem.trainers]
    lost = sum(
        here * trainer.weight * (1.0 + (trainer.up_cost_s + trainer.down_cost_s) / problem.t_fwd_s)
        for _, here, trainer in worth
    )
    bonus = 2.0 * (lost + max((most * trainer.weight for most, _, trainer in worth), default=0.0)) or 1.0
    raised = (
        _raised(trainer, least[trainer.name], bonus, problem.earns_now[trainer.name])
        if trainer.nodes_min <= least.get(trainer.name, 0) <= trainer.nodes_max
        else trainer
        for trainer in problem.trainers
    )
    return replace(problem, trainers=tuple(raised))


def _raised(trainer: TrainerSpec, least: int, bonus: float, now: float) -> TrainerSpec:
    """Return the trainer with every size from `least` on worth `bonus` more."""

    count = len(trainer.current)
    # its stalls cost what they did, though its rate is raised
    share = now / (now + bonus) if count >= least else 1.0
    curve, *others = (
        _lifted(each, trainer.weight, trainer.nodes_min, least, bonus)
        for each in (trainer.curve, *trainer.class_curves.values())
    )
    return replace(
        trainer,
        curve=curve,
        class_curves=dict(zip(trainer.class_curves, others, strict=True)),
        weight=1.0,
        up_cost_s=trainer.up_cost_s * share,
        down_cost_s=trainer.down_cost_s * share,
    )


@lru_cache(maxsize=1 << 10)
def _lifted(curve: Curve, weight: float, nodes_min: int, least: int, bonus: float) -> Curve:
    """Return the weighted curve with every size from `least` on worth `bonus` more."""
    sizes = {*curve.nodes, least} - {0}
    sizes |= {least - 1} if least > nodes_min else set()
    points = {size: curve(size) * weight for size in sorted(sizes) if size >= nodes_min}
    return Curve((0, *points), (0.0, *(worth + bonus * (size >= least) for size, worth in points.items())))
