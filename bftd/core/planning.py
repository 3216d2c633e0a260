"""From pool and trainers to a verified plan, and from the plan to leases granted and revoked.

The map that results is always one that the plan allows: where growing is forbidden or the solver fails, the current
map is kept as far as it is feasible (S9, L2), and a trainer that falls below nodes_min gives back what it has left
(L4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from math import inf
from operator import attrgetter

import milp
from bftd.core import caps, learn, objective, sentences
from bftd.core.domain import Planned, PoolNode, SolverFailed, Trainer
from bftd.core.turn import Turn
from milp import Curve, NodeSpec, Plan, Problem, TrainerSpec

Solver = Callable[..., Plan]
Assignment = Mapping[str, tuple[str, ...]]

# Relative gap asked of the solver: far below what a learned curve is worth.
SOLVER_GAP = 1e-4
# Read of thousands of leases and nodes at a time.
_NODE_OF, _IN_POOL, _WINDOW_S = attrgetter("node"), attrgetter("in_pool"), attrgetter("window_s")
# Rounds of placements in which a trainer was refused before it is held to be at a limit: fewer are lost races.
REFUSED_ROUNDS = 3


def replan(turn: Turn, solve: Solver) -> None:
    """Make a plan for the pool and the trainers of the draft and carry it out."""
    active = (trainer for trainer in turn.trainers.values() if trainer.active)
    admitted, waiting = caps.admit(active, turn.settings)
    curves = _curves(turn, admitted)
    held = turn.live_nodes()
    ordered = by_preference(turn.pool.nodes)
    assignment: Assignment | None = None
    if turn.may_grow and admitted:
        try:
            problem = build_problem(turn, admitted, curves, held, ordered)
            assignment = _solved(turn, problem, admitted, solve)
        except Exception as error:  # whatever a solver does, the trainers go on with what they have (L2)
            text = " ".join(str(error).split()) or type(error).__name__
            turn.actions.append(SolverFailed(text))
            turn.say(None, f"the current map is kept: the solver failed: {text}")
    if assignment is None:
        assignment = _kept(turn, admitted, held, ordered)
    _carry_out(turn, assignment, held, curves, waiting)
    turn.planned = Planned(turn.pool.version, turn.now, assignment)


def _curves(turn: Turn, trainers: list[Trainer]) -> dict[str, sentences.Points]:
    guess = 1.0
    if not all(trainer.knowledge.given for trainer in trainers):  # else nobody's curve is a guess
        guess = learn.median_rate_per_node(trainer.knowledge for trainer in trainers)
    return {trainer.id: learn.curve(trainer.knowledge, trainer.sizes.high, guess) for trainer in trainers}


def _kept(turn: Turn, trainers: list[Trainer], held: Assignment, nodes: Sequence[str]) -> Assignment:
    """The map as it is, as far as pool, sizes and caps allow; the least wanted nodes of a trainer go first."""
    places = {name: place for place, name in enumerate(nodes)}
    room = caps.node_room(turn.settings)
    kept = {}
    for trainer in trainers:
        ordered = sorted((node for node in held.get(trainer.id, ()) if node in places), key=places.__getitem__)
        size = trainer.sizes.largest(int(min(len(ordered), room.left(trainer))))
        room.take(trainer, size)
        kept[trainer.id] = tuple(ordered[:size])
    return kept


def by_preference(pool: Mapping[str, PoolNode]) -> list[str]:
    """The names of the pool's nodes, those that stay longest first, then n2 before n10."""
    names = sorted(compress(pool, map(_IN_POOL, pool.values())))
    names.sort(key=len)
    if any(window_s is not None for window_s in set(map(_WINDOW_S, pool.values()))):
        planned = {name: -node.window_s for name, node in pool.items() if node.window_s is not None}
        names.sort(key=lambda name: planned.get(name, -inf))
    return names


def _solved(turn: Turn, problem: Problem, trainers: list[Trainer], solve: Solver) -> Assignment:
    settings = turn.settings
    plan = solve(problem, settings.solver, time_limit_s=settings.solve_time_limit_s, gap=SOLVER_GAP)
    milp.verify(problem, plan)
    # a trainer that may not grow now and holds too few nodes was no part of the problem: it gets nothing
    return {trainer.id: tuple(plan.assignment.get(trainer.id, ())) for trainer in trainers}


def build_problem(
    turn: Turn,
    trainers: list[Trainer],
    curves: Mapping[str, sentences.Points],
    current: Assignment,
    nodes: Sequence[str],
) -> Problem:
    """The allocation problem of the draft, with the map `current` and the pool's `nodes` in order of preference.

    Nodes that back off are left out unless somebody has them. All nodes are one class: a trainer may run on nodes
    with different GPUs, and does so at the pace of the slowest.
    """
    wanted = [(trainer, _most_nodes(turn, trainer, len(current.get(trainer.id, ())))) for trainer in trainers]
    most_of, limits = caps.in_problem(wanted, len(nodes), turn.settings)
    specs = []
    for trainer in trainers:
        mine = current.get(trainer.id, ())
        most = most_of[trainer.id]
        if most == 0:
            continue
        points, weight = objective.values(curves[trainer.id], turn.settings.objective, trainer.request.weight)
        points = objective.after_warm_up(points, len(mine), trainer.knowledge.warm_up_s / turn.settings.t_fwd_s)
        specs.append(
            _spec(
                name=trainer.id,
                nodes_min=trainer.sizes.low,
                nodes_max=most,
                up_cost_s=trainer.knowledge.up_cost_s,
                down_cost_s=trainer.knowledge.down_cost_s,
                curve=_curve(points),
                current=mine,
                sizes=trainer.sizes.only,
                weight=weight,
                user=trainer.user if limits else "",
                account=trainer.account if limits else "",
            )
        )
    usable = nodes
    if turn.backoff:
        held = {node for spec in specs for node in spec.current}
        usable = [name for name in nodes if name in held or not _backs_off(turn, name)]
    return Problem(tuple(map(_node, usable)), tuple(specs), turn.settings.t_fwd_s, limits)


# Most of a problem is that of the plan before, and what is the same need not be checked again.
_node = lru_cache(maxsize=1 << 16)(NodeSpec)
_spec = lru_cache(maxsize=1 << 10)(TrainerSpec)


@lru_cache(maxsize=1 << 10)
def _curve(points: sentences.Points) -> Curve:
    return Curve(tuple(size for size, _ in points), tuple(value for _, value in points))


def _most_nodes(turn: Turn, trainer: Trainer, held: int) -> int:
    """The most nodes to plan for a trainer: one whose pilots were refused waits, then tries with as few as it can.

    So a user at his limit takes no node from others again and again.
    """
    if trainer.refused_rounds < REFUSED_ROUNDS:
        return trainer.sizes.high
    stays = trainer.sizes.largest(held)
    if trainer.no_growth_until_s > turn.now:
        return stays
    larger = trainer.sizes.above(held)
    return larger if larger > held else stays


def _backs_off(turn: Turn, node: str) -> bool:
    return node in turn.backoff and turn.backoff[node].until_s > turn.now


def _carry_out(
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
        mine, planned = held.get(trainer.id, ()), assignment.get(trainer.id, ())
        if planned == mine and trainer.sizes.allows(len(mine)):
            continue
        target = set(planned)
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
    taken = set(map(_NODE_OF, turn.leases.values()))
    left = turn.budget if turn.may_grow else 0
    added: dict[str, list[str]] = {}
    for trainer in trainers:
        target = assignment.get(trainer.id, ())
        if target == held.get(trainer.id, ()):  # as it is with most trainers in most plans
            added[trainer.id] = []
            continue
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
    return sum(not _backs_off(turn, name) for name in unused)


def _explain_stay(
    turn: Turn, trainer: Trainer, held: int, free: int, points: sentences.Points, at_cap: str | None
) -> None:
    """Say once why a trainer below nodes_max does not take free nodes; `at_cap` is the cap that forbids it."""
    if held >= trainer.sizes.high or (held > 0 and not free):
        return
    stays = f"stays at {sentences.nodes(held)}" if held else "waits"
    if not turn.may_grow:
        key, text = "hold", f"{trainer.name} {stays}: {_why_no_growth(turn)}"
    elif trainer.refused_rounds >= REFUSED_ROUNDS:
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
