"""From pool and trainers to a verified plan.

Where growing is forbidden or the solver fails, the plan is to keep the current map as far as it is feasible (S9, L2).
`bftd.core.execution` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from math import inf
from operator import attrgetter

import milp
from bftd.core import caps, execution, learn, objective
from bftd.core.caps import Ruling
from bftd.core.decisions import MapKept
from bftd.core.domain import Assignment, Planned, PoolNode, SolverFailed, Trainer
from bftd.core.turn import Turn
from milp import Curve, NodeSpec, Plan, Points, Problem, TrainerSpec

Solve = Callable[..., Plan]

# Relative gap asked of the solver: far below what a learned curve is worth.
SOLVER_GAP = 1e-4
# Read of thousands of nodes at a time.
_IN_POOL, _WINDOW_S = attrgetter("in_pool"), attrgetter("window_s")


def replan(turn: Turn, solve: Solve) -> None:
    """Make a plan for the pool and the trainers of the draft and carry it out."""
    held = turn.live_nodes()
    ordered = by_preference(turn.pool.nodes)
    ruling = caps.rule(turn, held, len(ordered))
    curves = _curves(turn, ruling.admitted)
    assignment: Assignment | None = None
    if turn.may_grow and ruling.admitted:
        try:
            problem = build_problem(turn, ruling, curves, held, ordered)
            assignment = _solved(turn, problem, ruling.admitted, solve)
        except Exception as error:  # whatever a solver does, the trainers go on with what they have (L2)
            text = " ".join(str(error).split()) or type(error).__name__
            turn.actions.append(SolverFailed(text))
            if turn.explain:
                turn.say(None, MapKept(text))
    if assignment is None:
        assignment = _kept(turn, ruling.admitted, held, ordered)
    execution.carry_out(turn, assignment, held, curves, ruling)
    turn.planned = Planned(turn.pool.version, turn.now, assignment)


def _curves(turn: Turn, trainers: Sequence[Trainer]) -> dict[str, Points]:
    guess = 1.0
    if not all(trainer.knowledge.given for trainer in trainers):  # else nobody's curve is a guess
        guess = learn.median_rate_per_node(trainer.knowledge for trainer in trainers)
    return {trainer.id: learn.curve(trainer.knowledge, trainer.sizes.high, guess) for trainer in trainers}


def _kept(turn: Turn, trainers: Sequence[Trainer], held: Assignment, nodes: Sequence[str]) -> Assignment:
    """The current map as far as pool, sizes and caps allow. A trainer loses the nodes that it prefers least."""
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


def _solved(turn: Turn, problem: Problem, trainers: Sequence[Trainer], solve: Solve) -> Assignment:
    decide = turn.settings.decide
    plan = solve(problem, decide.solver, time_limit_s=decide.solve_time_limit_s, gap=SOLVER_GAP, explain=False)
    if plan.verified_for is not problem:  # `milp.solve` has checked its plan, no other solver is trusted (S6)
        milp.verify(problem, plan)
    # a trainer that may not grow now and holds too few nodes is left out of the problem, and gets nothing
    return {trainer.id: tuple(plan.assignment.get(trainer.id, ())) for trainer in trainers}


def build_problem(
    turn: Turn,
    ruling: Ruling,
    curves: Mapping[str, Points],
    current: Assignment,
    nodes: Sequence[str],
) -> Problem:
    """The allocation problem of the draft, with the map `current` and the pool's `nodes` in order of preference.

    Nodes that back off are left out unless a trainer holds them. All nodes are of one class: a trainer may run on
    nodes with different GPUs, at the pace of the slowest.
    """
    limits = ruling.limits
    specs = []
    for trainer in ruling.admitted:
        mine = current.get(trainer.id, ())
        most = ruling.most[trainer.id]
        if most == 0:
            continue
        points, weight = objective.values(
            curves[trainer.id],
            turn.settings.decide.objective,
            trainer.request.weight,
            measured=turn.settings.trusting,
        )
        points = objective.after_warm_up(points, len(mine), trainer.knowledge.warm_up_s / turn.settings.decide.t_fwd_s)
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
        usable = [name for name in nodes if name in held or not turn.backs_off(name)]
    return Problem(tuple(map(_node, usable)), tuple(specs), turn.settings.decide.t_fwd_s, limits)


# Most of a problem is that of the plan before, and what is the same need not be checked again.
_node = lru_cache(maxsize=1 << 16)(NodeSpec)
_spec = lru_cache(maxsize=1 << 10)(TrainerSpec)


@lru_cache(maxsize=1 << 10)
def _curve(points: Points) -> Curve:
    return Curve(tuple(size for size, _ in points), tuple(value for _, value in points))
