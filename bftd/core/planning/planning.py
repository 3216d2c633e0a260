"""Making a verified plan from pool and trainers.

If growing is forbidden or the solver fails, the plan is to keep the current map as far as it is feasible (S9, L2).
`bftd.core.planning.execution` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

import milp
from bftd.core.model import classes, solvers
from bftd.core.model.decisions import MapKept, SolverReplaced
from bftd.core.model.domain import Assignment, Planned, SolverFailed, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.solvers import FailedSolver
from bftd.core.model.timing import SOLVER_REST_S
from bftd.core.planning import caps, execution, first_nodes, objective, probing
from bftd.core.planning.caps import Ruling
from bftd.core.planning.node_order import by_preference, keep_working
from bftd.core.scaling import learning
from milp import Curve, NodeSpec, Plan, Points, Problem, TrainerSpec

Solve = Callable[..., Plan]

# Relative gap asked of the solver: far below the accuracy of a learned curve.
SOLVER_GAP = 1e-4
# On several classes of nodes proofs take long, since similar classes make plans that hardly differ. An optimum that
# only an integer program can find takes seconds, which no poll has.
CLASSES_GAP = 2e-3
CLASSES_TIME_LIMIT_S = 0.25
QUICK = "stepwise"
_CLASS = attrgetter("node_class")


def replan(turn: Draft, solve: Solve) -> None:
    """Make a plan for the pool and the trainers of the draft and carry it out."""
    held = turn.live_nodes()
    ordered = by_preference(turn.pool.nodes)
    first_nodes.note(turn, held)
    probing.end(turn)
    entitled = first_nodes.entitled(turn, held, len(ordered))
    ruling = caps.rule(turn, held, len(ordered), [trainer.id for trainer in entitled])
    curves = _curves(turn, ruling.admitted)
    assignment: Assignment | None = None
    because: dict[str, str] = {}
    if turn.may_grow and ruling.admitted:
        try:
            tried = probing.sizes(turn, ruling)
            assignment = _tried(turn, ruling, curves, held, ordered, tried, solve)
            if missing := first_nodes.left_out(entitled, ruling.admitted, assignment):
                least = first_nodes.least(entitled, ruling.admitted, assignment)
                assignment = _tried(turn, ruling, curves, held, ordered, tried, solve, least)
                because = first_nodes.reasons(turn, missing, assignment)
            elif probing.begin(turn, ruling, held, assignment, curves):
                assignment = _tried(turn, ruling, curves, held, ordered, probing.sizes(turn, ruling), solve)
        except Exception as error:  # whatever a solver does, the trainers go on with what they have (L2)
            text = " ".join(str(error).split()) or type(error).__name__
            turn.actions.append(SolverFailed(text))
            turn.unsolved = text
            turn.failed_solvers = {**turn.failed_solvers, turn.settings.decide.solver: FailedSolver(text, turn.now)}
            if turn.explain:
                turn.say(None, MapKept(text))
    if assignment is None:
        assignment = _kept(turn, ruling.admitted, held, ordered)
    assignment = keep_working(turn, assignment, held)
    because |= probing.reasons(turn)
    execution.carry_out(turn, assignment, held, curves, ruling, because)
    turn.planned = Planned(turn.pool.version, turn.now, assignment)


def _tried(
    turn: Draft,
    ruling: Ruling,
    curves: Mapping[str, Points],
    held: Assignment,
    nodes: Sequence[str],
    tried: Mapping[str, int],
    solve: Solve,
    least: Mapping[str, int] | None = None,
) -> Assignment:
    """Return the best map in which trainers have the nodes they are `tried` on, and others at least `least`."""
    bound = replace(ruling, most={**ruling.most, **tried}) if tried else ruling
    problem = build_problem(turn, bound, curves, held, nodes)
    if tried or least:
        problem = first_nodes.insisted(problem, {**(least or {}), **tried})
    return _solved(turn, problem, ruling.admitted, solve)


def _curves(turn: Draft, trainers: Sequence[Trainer]) -> dict[str, Points]:
    guess = 1.0
    if not all(trainer.knowledge.given for trainer in trainers):  # otherwise no curve is a guess
        guess = learning.median_rate_per_node(trainer.knowledge for trainer in trainers)
    return {trainer.id: learning.curve(trainer.knowledge, trainer.sizes.high, guess) for trainer in trainers}


def _kept(turn: Draft, trainers: Sequence[Trainer], held: Assignment, nodes: Sequence[str]) -> Assignment:
    """Return the current map as far as pool, classes, sizes and caps allow; least preferred nodes are lost first."""
    places = {name: place for place, name in enumerate(nodes)}
    quota = caps.node_quota(turn.settings)
    kept = {}
    for trainer in trainers:
        ordered = sorted((node for node in held.get(trainer.id, ()) if node in places), key=places.__getitem__)
        if len(turn.pool.classes) > 1:
            ordered = _fitting(turn, trainer, ordered)
        size = trainer.sizes.largest(int(min(len(ordered), quota.left(trainer))))
        quota.take(trainer, size)
        kept[trainer.id] = tuple(ordered[:size])
    return kept


def _fitting(turn: Draft, trainer: Trainer, nodes: list[str]) -> list[str]:
    """Return the trainer's nodes that it may use together."""
    may_use = usable_classes(turn, trainer)
    class_of = {node: turn.class_of(node) for node in nodes}
    nodes = [node for node in nodes if class_of[node] in may_use]
    return nodes if trainer.request.requirements.mix else classes.largest(nodes, class_of)


def usable_classes(turn: Draft, trainer: Trainer) -> tuple[str, ...]:
    """Return the classes of nodes that a trainer may use."""
    return classes.usable(turn.pool.classes, trainer.request.requirements, trainer.request.partition)


def _solved(turn: Draft, problem: Problem, trainers: Sequence[Trainer], solve: Solve) -> Assignment:
    decide = turn.settings.decide
    turn.failed_solvers = solvers.resting(turn.failed_solvers, turn.now)
    solver = solvers.to_ask(decide.solver, turn.failed_solvers)
    limit_s, gap = decide.solve_time_limit_s, SOLVER_GAP
    if solver == "auto" and len(problem.classes) > 1:
        if problem.caps or any(trainer.mixes_classes for trainer in problem.trainers):
            solver = QUICK
        limit_s, gap = min(limit_s, CLASSES_TIME_LIMIT_S), CLASSES_GAP
    without = frozenset(turn.failed_solvers)
    plan = solve(problem, solver, time_limit_s=limit_s, gap=gap, explain=False, fallback=True, without=without)
    if plan.verified_for is not problem:  # `milp.solve` has checked its plan, no other solver is trusted (S6)
        milp.verify(problem, plan)
    turn.failed_solvers = solvers.noted(turn.failed_solvers, plan, turn.now)
    if decide.solver != "auto":  # with "auto" users need not know which solvers were tried
        for name, error in plan.failed.items():
            turn.say(None, SolverReplaced(name, plan.solver, error, SOLVER_REST_S))
    # a trainer that may not grow now and holds too few nodes is left out of the problem, and gets nothing
    return {trainer.id: tuple(plan.assignment.get(trainer.id, ())) for trainer in trainers}


def build_problem(
    turn: Draft,
    ruling: Ruling,
    curves: Mapping[str, Points],
    current: Assignment,
    nodes: Sequence[str],
) -> Problem:
    """Return the allocation problem of the draft, with the map `current` and the pool's `nodes` in order of preference.

    Nodes that back off, or that regular jobs share, are left out unless a trainer holds them, and so are trainers that
    may use no class of the pool. The solver is told of classes only if the pool has several: solvers for one class are
    quicker.
    """
    limits = ruling.limits
    kinds = frozenset(map(turn.class_of, nodes)) if turn.pool.classes else frozenset({""})
    specs = []
    for trainer in ruling.admitted:
        mine = current.get(trainer.id, ())
        most = ruling.most[trainer.id]
        may_use = kinds.intersection(usable_classes(turn, trainer)) if turn.pool.classes else kinds
        if most == 0 or not may_use:
            continue
        values, weight = _values(turn, trainer, curves[trainer.id], len(mine))
        spec = _spec(
            name=trainer.id,
            nodes_min=trainer.sizes.low,
            nodes_max=most,
            up_cost_s=trainer.knowledge.up_cost_s(len(mine)),
            down_cost_s=trainer.knowledge.down_cost_s(len(mine)),
            curve=_curve(values),
            current=mine,
            sizes=trainer.sizes.only,
            weight=weight,
            user=trainer.user if limits else "",
            account=trainer.account if limits else "",
        )
        spec = spec if len(kinds) == 1 else _on_classes(turn, trainer, spec, sorted(may_use), kinds)
        favoured = turn.settings.decide.first_node_within_s and (mine or not trainer.refused_rounds)
        if favoured:
            classes = frozenset(map(turn.class_of, mine))
            spec = first_nodes.favoured(spec, spec.weight * spec.curve_on(classes)(len(mine)))
        specs.append(spec)
    usable = nodes
    shared = {name for name in nodes if turn.pool.nodes[name].co_located}
    if turn.backoff or shared or turn.pool.counted_on:
        held = {node for spec in specs for node in spec.current}
        usable = [name for name in nodes if name in held or not (name in shared or turn.backs_off(name))]
    problem_nodes = map(_node, usable) if len(kinds) == 1 else map(_node, usable, map(turn.class_of, usable))
    return Problem(tuple(problem_nodes), tuple(specs), turn.settings.decide.t_fwd_s, limits)


def _values(
    turn: Draft, trainer: Trainer, points: Points, held: int, one_node: float | None = None
) -> tuple[Points, float]:
    """Return the curve of values to the plan for a curve in samples/s, and its weight."""
    decide = turn.settings.decide
    values, weight = objective.values(
        points, decide.objective, trainer.request.weight, one_node, measured=turn.settings.trusting
    )
    return objective.after_warm_up(values, held, _unearned(trainer, held, decide.t_fwd_s)), weight


def _unearned(trainer: Trainer, held: int, t_fwd_s: float) -> float:
    """Return the part of t_fwd for which more nodes than the `held` ones would earn nothing yet."""
    # Fetching an image, or loading a large checkpoint, may take longer than t_fwd. But it never counts as all of t_fwd:
    # otherwise a trainer whose first nodes took so long would stay as it is for ever, and never learn that later ones
    # are quicker.
    if held or not trainer.suspends:
        warm_up_s = trainer.knowledge.warm_up_s
        return min(warm_up_s / t_fwd_s, max(0.5, warm_up_s / (t_fwd_s + warm_up_s)))
    return trainer.knowledge.resume_s / (t_fwd_s + trainer.knowledge.resume_s)


def _on_classes(
    turn: Draft, trainer: Trainer, spec: TrainerSpec, may_use: Sequence[str], kinds: Collection[str]
) -> TrainerSpec:
    """Return the trainer for a pool of several classes: the classes that it may use, and its curve on each."""
    only = tuple(may_use) if len(may_use) < len(kinds) else None
    if trainer.request.requirements.mix:
        return replace(spec, mixes_classes=True, only_classes=only)
    if not trainer.knowledge.by_class:  # all classes are assumed to be as fast
        return replace(spec, only_classes=only)
    everywhere, fastest = learning.curves_on(trainer.knowledge, trainer.sizes.high, usable_classes(turn, trainer))
    curves = {name: _curve(_values(turn, trainer, everywhere[name], len(spec.current), fastest)[0]) for name in may_use}
    return replace(spec, class_curves=curves, only_classes=only)


# Most of a problem is the same as in the plan before, and need not be checked again.
_node = lru_cache(maxsize=1 << 16)(NodeSpec)
_spec = lru_cache(maxsize=1 << 10)(TrainerSpec)


@lru_cache(maxsize=1 << 10)
def _curve(points: Points) -> Curve:
    return Curve(tuple(size for size, _ in points), tuple(value for _, value in points))
