"""A fast solver for several node classes with caps and mixing trainers: `classes` repeated with tighter limits.

Caps are left out at first. If a plan breaks some, their trainers are limited to their parts of what the cap allows, and
the rest is solved anew, so that others get the nodes given up. A trainer that mixes classes is planned on one, or keeps
its nodes if they are of several; then it takes free nodes of other classes. Nothing is proven about such plans, except
that, if no trainer mixes, no plan is worth more than the first. A MILP solver finds better ones, given seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from milp.assignments import assign_blocks, blocks, keep
from milp.problem import Cap, NodeSpec, Problem, TrainerSpec
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.one_class import exact
from milp.solvers.several_classes.classes import solve_tables
from milp.solvers.several_classes.tables import tabulate
from milp.utility import objective_of, worth

Map = dict[str, tuple[str, ...]]
# Counts per class, by trainer.
_Shares = dict[str, dict[str, int]]
# Only caps that cross in odd ways need more rounds than this.
_MOST_ROUNDS = 8
# Time for each of them: proving the last per mille of a part proves nothing about the whole.
_STEP_S = 0.05


@dataclass(frozen=True)
class _Found:
    """A map that keeps every rule, and an upper bound for all maps of the problem without caps."""

    assignment: Map
    bound: float


def _run(problem: Problem, effort: Effort) -> SolverAnswer:
    if not problem.trainers or not problem.nodes:
        return SolverAnswer({trainer.name: () for trainer in problem.trainers}, bound=None)
    kept = keep(problem)
    pinned = {t.name: kept[t.name] for t in problem.trainers if _is_spread(problem, t, kept[t.name])}
    best = _plan(problem, pinned, effort)
    value = objective_of(problem, best.assignment)
    for name in pinned:
        for count in (len(pinned[name]) // 2, 0):  # would others make more of half of these nodes, or of all?
            if effort.is_over():
                break
            other = _plan(problem, pinned | {name: _fewer(problem, name, pinned[name], count)}, effort)
            if (gained := objective_of(problem, other.assignment)) > value:
                best, value = replace(other, bound=best.bound), gained
    mixes = any(trainer.mixes_classes for trainer in problem.trainers)
    return SolverAnswer(best.assignment, math.inf if mixes else best.bound)


def _is_spread(problem: Problem, trainer: TrainerSpec, nodes: tuple[str, ...]) -> bool:
    """Whether a mixing trainer keeps nodes of several classes."""
    return trainer.mixes_classes and len(problem.classes_of(nodes)) > 1


def _fewer(problem: Problem, name: str, nodes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the most preferred of a trainer's nodes: the largest allowed number up to `count`."""
    trainer = next(trainer for trainer in problem.trainers if trainer.name == name)
    return tuple(sorted(nodes, key=problem.pool.__getitem__)[: trainer.largest_allowed(count)])


def _plan(problem: Problem, pinned: Mapping[str, tuple[str, ...]], effort: Effort) -> _Found:
    """Return a map in which the `pinned` trainers have these nodes, or more."""
    taken = {node for nodes in pinned.values() for node in nodes}
    rest = tuple(node for node in problem.nodes if node.name not in taken)
    limits = {t.name: t.largest_allowed(t.nodes_max) for t in problem.trainers if t.name not in pinned}
    bound = math.inf
    shares = _shares_of(problem, pinned)
    for round_ in range(_MOST_ROUNDS):
        found, reached = _without_caps(problem, rest, limits, effort)
        bound = reached if round_ == 0 else bound
        if not _tightened(problem, limits, found, {name: len(nodes) for name, nodes in pinned.items()}, effort):
            shares.update(found)
            break
    _fill(problem, shares)
    parts = blocks(problem)
    order = [next(iter(part.classes)) for part in parts]
    by_part = {t.name: [shares.get(t.name, {}).get(name, 0) for name in order] for t in problem.trainers}
    return _Found(assign_blocks(problem, parts, by_part), bound)


def _shares_of(problem: Problem, pinned: Mapping[str, tuple[str, ...]]) -> _Shares:
    shares: _Shares = {}
    for name, nodes in pinned.items():
        mine = shares[name] = {}
        for node in nodes:
            mine[problem.class_of[node]] = mine.get(problem.class_of[node], 0) + 1
    return shares


def _without_caps(
    problem: Problem, nodes: tuple[NodeSpec, ...], limits: Mapping[str, int], effort: Effort
) -> tuple[_Shares, float]:
    """Return the best counts on one class each, with `limits` for nodes_max, and the bound of that."""
    here = {node.name for node in nodes}
    specs = tuple(
        replace(
            trainer,
            nodes_max=limits[trainer.name],
            mixes_classes=False,
            current=tuple(node for node in trainer.current if node in here),
        )
        for trainer in problem.trainers
        if limits.get(trainer.name)
    )
    if not specs or not nodes:
        return {}, 0.0
    part = replace(problem, nodes=nodes, trainers=specs, caps=(), groups=())
    tables = tabulate(part)
    soon = replace(effort, deadline_s=min(effort.deadline_s, effort.clock() + _STEP_S))
    plan, bound = solve_tables(tables, soon)
    classes = part.classes
    shares = {
        trainer.name: {classes[kind]: count}
        for trainer, kind, count in zip(specs, plan.kind.tolist(), plan.count.tolist(), strict=True)
    }
    return shares, bound + tables.tie_breaks


def _tightened(
    problem: Problem, limits: dict[str, int], found: _Shares, pinned: Mapping[str, int], effort: Effort
) -> bool:
    """Limit the trainers of every cap that `found` breaks to their parts of it; return whether there was any."""
    broken = False
    for cap in problem.caps:
        covered = [t for t in problem.trainers if cap.covers(t.user, t.account)]
        left = max(0, cap.nodes_max - sum(pinned.get(t.name, 0) for t in covered))
        mine = [t for t in covered if limits.get(t.name)]
        if sum(sum(found.get(t.name, {}).values()) for t in mine) <= left:
            continue
        broken = True
        specs = [_alone(t, limits[t.name], found.get(t.name, {})) for t in mine]
        limits.update(_divided(specs, left, problem.t_fwd_s, effort))
    return broken


def _alone(trainer: TrainerSpec, limit: int, share: Mapping[str, int]) -> TrainerSpec:
    """Return the trainer as if the class that it got were the only one."""
    return TrainerSpec(
        name=trainer.name,
        nodes_min=trainer.nodes_min,
        nodes_max=limit,
        up_cost_s=trainer.up_cost_s,
        down_cost_s=trainer.down_cost_s,
        curve=trainer.curve_on(share.keys()),
        current=trainer.current,
        sizes=trainer.sizes,
        weight=trainer.weight,
    )


def _divided(specs: Sequence[TrainerSpec], left: int, t_fwd_s: float, effort: Effort) -> dict[str, int]:
    """Return the best part of `left` nodes for each trainer, whatever their classes."""
    if not left:
        return dict.fromkeys((spec.name for spec in specs), 0)
    names = [str(number) for number in range(left)]
    fits = sum(len(spec.current) for spec in specs) <= left  # else the cost of a change is left out
    rest = iter(names)
    placed = (replace(spec, current=tuple(islice(rest, len(spec.current) if fits else 0))) for spec in specs)
    answer = exact.SOLVER.run(Problem(tuple(map(NodeSpec, names)), tuple(placed), t_fwd_s), effort)
    return {name: len(nodes) for name, nodes in (answer.assignment or {}).items()}


def _fill(problem: Problem, shares: _Shares) -> None:
    """Give the free nodes to mixing trainers, in their order, if that is worth it."""
    free = dict(problem.class_sizes)
    for share in shares.values():
        for name, count in share.items():
            free[name] -= count
    for trainer in problem.trainers:
        if trainer.mixes_classes:
            _grow(problem, trainer, shares, free)


def _grow(problem: Problem, trainer: TrainerSpec, shares: _Shares, free: dict[str, int]) -> None:
    """Add the most valuable number of the `free` nodes to a trainer's share, classes with most free nodes first."""
    share = dict(shares.get(trainer.name, {}))
    have, held = sum(share.values()), len(trainer.current)
    usable = sorted((name for name in free if trainer.may_use(name) and free[name]), key=lambda name: -free[name])
    caps = (cap for cap in problem.caps if cap.covers(trainer.user, trainer.account))
    left = [cap.nodes_max - _used(problem, shares, cap) for cap in caps]
    most = have + min([sum(free[name] for name in usable), *left])
    if have < held or most <= have:  # a trainer that gives nodes up takes none, by (6)
        return
    curve = trainer.curve_on({*usable, *(name for name, count in share.items() if count)})
    before = worth(problem, trainer, have, trainer.curve_on([name for name, count in share.items() if count]))
    counts = {trainer.largest_allowed(min(most, end)) for end in (most, *curve.nodes)}
    best = max((count for count in counts if count > have), key=lambda n: worth(problem, trainer, n, curve), default=0)
    if not best or worth(problem, trainer, best, curve) <= before:
        return
    wanted = best - have
    for name in usable:
        more = min(free[name], wanted)
        share[name] = share.get(name, 0) + more
        free[name] -= more
        wanted -= more
    shares[trainer.name] = share


def _used(problem: Problem, shares: _Shares, cap: Cap) -> int:
    covered = (t for t in problem.trainers if cap.covers(t.user, t.account))
    return sum(sum(shares.get(t.name, {}).values()) for t in covered)


SOLVER = Solver(
    name="stepwise",
    summary="several classes of nodes with caps and mixing trainers, quickly: `classes` with limits tightened",
    features=frozenset(
        {Feature.NODE_CLASSES, Feature.MIXING, Feature.ONLY_CLASSES, Feature.CAPS, Feature.CROSSING_CAPS}
    ),
    proves=False,
    run=_run,
)
