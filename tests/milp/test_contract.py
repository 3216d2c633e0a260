"""What every solver of the table keeps, on the problems that its declared features say it carries.

A new solver is under the contract once it stands in the table; nothing here names one.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import psutil
import pytest

from milp import Cap, Curve, NodeGroup, NodeSpec, PlanError, Problem, TrainerSpec, UnsupportedError, solve, verify
from milp.assignments import keep
from milp.solver import Effort, Feature, Solver, SolverAnswer, features
from milp.solvers.one_class import exact
from milp.solvers.registry import every
from milp.solvers.several_classes import stepwise
from milp.utility import objective_of
from tests.milp.instances import is_allowed, optimum

pytestmark = pytest.mark.slow

# A gap far below what two maps of these problems differ by.
GAP = 1e-9
TIME_LIMIT_S = 0.3
# CPU time beyond the limit: a child process that starts.
PATIENCE_S = 2.0


# What needs several classes to be asked for.
ON_CLASSES = (Feature.NODE_CLASSES, Feature.MIXING, Feature.ONLY_CLASSES)


def small(seed: int, wanted: Feature | None) -> Problem:
    """A problem on six nodes with numbers of a daemon's kind, which asks for nothing or for `wanted`."""
    rng = random.Random(f"{seed} {wanted}")
    classes = ("a", "b") if wanted in ON_CLASSES else ("",)
    nodes = tuple(NodeSpec(f"n{i}", rng.choice(classes)) for i in range(6))
    free = [node.name for node in nodes]
    rng.shuffle(free)
    trainers = []
    for place in range(3):
        held = [free.pop() for _ in range(rng.choice((0, 1, 2))) if free]
        points = sorted(rng.sample(range(1, 8), 3))
        low = rng.choice((1, 1, 2, 3))
        trainers.append(
            TrainerSpec(
                name=f"t{place}",
                nodes_min=low,
                nodes_max=rng.choice((4, 6)),
                up_cost_s=rng.choice((0.0, 10.0, 30.0)),
                down_cost_s=rng.choice((0.0, 5.0)),
                curve=Curve((0, *points), (0.0, *(round(rng.uniform(1, 9), 2) for _ in points))),
                current=tuple(held),
                sizes=(low, 4) if rng.random() < 0.3 and low < 4 else None,
                weight=rng.choice((1.0, 1.0, 2.0)),
                class_curves={"b": Curve((0, 6), (0.0, round(rng.uniform(1, 9), 2)))} if len(classes) > 1 else {},
                mixes_classes=wanted is Feature.MIXING,
                only_classes=(("a",), None, ("b", "c"))[place] if wanted is Feature.ONLY_CLASSES else None,
                user=("ann", "ann", "bob")[place],
                account=("lab", "", "lab")[place],
            )
        )
    caps: tuple[Cap, ...] = ()
    if wanted in (Feature.CAPS, Feature.CROSSING_CAPS):
        caps = (Cap(rng.choice((0, 1, 2, 3)), user="ann"),)
    if wanted is Feature.CROSSING_CAPS:
        caps = (*caps, Cap(rng.choice((1, 2, 3)), account="lab"))
    groups = (NodeGroup("leaf", ("n0", "n1", "n2")),) if wanted is Feature.GROUPS else ()
    return Problem(nodes, tuple(trainers), 60.0, caps, groups)


def large(wanted: Feature | None) -> Problem:
    """A problem of a thousand nodes, too large to be done within the time limit unless a solver is quick."""
    rng = random.Random(f"large {wanted}")
    classes = ("a", "b", "c") if wanted in ON_CLASSES else ("",)
    nodes = tuple(NodeSpec(f"n{i}", classes[i % len(classes)]) for i in range(1000))
    curves = (sorted(rng.sample(range(1, 80), 5)) for _ in range(60))
    trainers = tuple(
        TrainerSpec(
            name=f"t{place}",
            nodes_min=1,
            nodes_max=64,
            up_cost_s=rng.uniform(0, 40),
            down_cost_s=rng.uniform(0, 10),
            curve=Curve((0, *points), (0.0, *sorted(rng.uniform(1, 20) for _ in points))),
            current=tuple(f"n{i}" for i in range(place * 15, place * 15 + rng.randint(0, 15), len(classes))),
            mixes_classes=wanted is Feature.MIXING,
            only_classes=("a", "b") if wanted is Feature.ONLY_CLASSES and place % 2 else None,
            user=f"u{place % 7}",
            account=f"a{place % 3}",
        )
        for place, points in enumerate(curves)
    )
    caps = [Cap(70, user=f"u{i}") for i in range(7)] if wanted in (Feature.CAPS, Feature.CROSSING_CAPS) else []
    caps += [Cap(100, account="a0")] if wanted is Feature.CROSSING_CAPS else []
    leaves = [NodeGroup(f"leaf{i}", tuple(f"n{i * 20 + k}" for k in range(20))) for i in range(10)]
    return Problem(nodes, trainers, 120.0, tuple(caps), tuple(leaves) if wanted is Feature.GROUPS else ())


KINDS: tuple[Feature | None, ...] = (None, *Feature)
SMALL = tuple(small(seed, wanted) for wanted in KINDS for seed in range(6))


@cache
def optima() -> tuple[float, ...]:
    """What each of the small problems is worth at best, for the worker alone that tests it."""
    return tuple(map(optimum, SMALL))


@cache
def large_ones() -> tuple[Problem, ...]:
    return tuple(map(large, KINDS))


def carried(solver: Solver) -> Iterator[tuple[Problem, float]]:
    """The small problems that the solver says it carries, each with its optimum."""
    both = zip(SMALL, optima(), strict=True)
    return ((problem, best) for problem, best in both if features(problem) <= solver.features)


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


# -- the contract ---


def finds_the_optimum_if_it_says_so(solver: Solver) -> None:
    for problem, best in carried(solver):
        plan = solve(problem, solver, gap=GAP)
        assert plan.objective <= best + 1e-6 * abs(best)
        if solver.proves:
            assert plan.objective == close(best)
            assert plan.status == "optimal"


def proves_a_bound_that_holds(solver: Solver) -> None:
    for problem, best in carried(solver):
        for gap in (GAP, 0.3):
            plan = solve(problem, solver, gap=gap)
            assert plan.bound >= plan.objective
            assert plan.bound >= best - 1e-6 * abs(best)
            if solver.proves:
                assert plan.gap <= gap


def gives_plans_that_are_allowed(solver: Solver) -> None:
    for problem, _ in carried(solver):
        plan = solve(problem, solver, gap=GAP)
        verify(problem, plan)
        assert is_allowed(problem, dict(plan.assignment))
        assert plan.reasons.keys() == plan.assignment.keys()


def is_no_worse_than_doing_nothing(solver: Solver) -> None:
    for problem, _ in carried(solver):
        if not solver.baseline:
            least = objective_of(problem, keep(problem))
            assert solve(problem, solver).objective >= least - 1e-9 * abs(least)


def says_the_same_of_the_same_problem(solver: Solver) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stepwise, "_STEP_S", math.inf)  # a step that a busy machine cuts short may find less
        for problem, _ in carried(solver):
            first, again = (solve(replace(problem), solver, gap=GAP) for _ in range(2))
            assert replace(first, wall_s=0.0) == replace(again, wall_s=0.0)


def worked_s() -> float:
    """CPU time of this process and its children: what a solver takes of it does not depend on who else works."""
    children = psutil.Process().children(recursive=True)
    return sum(os.times()[:4]) + sum(sum(child.cpu_times()[:2]) for child in children)


def keeps_the_time_limit(solver: Solver) -> None:
    for problem in large_ones():
        if features(problem) <= solver.features:
            for limit_s in (0.0, TIME_LIMIT_S):
                start_s = worked_s()
                try:
                    plan = solve(problem, solver, time_limit_s=limit_s, gap=0.0, explain=False)
                except UnsupportedError as refused:  # it had the time to see that so large a program is not for it
                    if "licence" not in str(refused):
                        raise
                    continue
                assert worked_s() - start_s < limit_s + PATIENCE_S
                verify(problem, plan)


def has_an_answer_where_there_is_nothing_to_decide(solver: Solver) -> None:
    problem = SMALL[0]
    nobody = replace(problem, trainers=())
    assert solve(nobody, solver).assignment == {}
    idle = tuple(replace(trainer, current=()) for trainer in problem.trainers)
    assert set(solve(replace(problem, nodes=(), trainers=idle), solver).assignment.values()) == {()}


def refuses_the_rest_and_names_what_to_use(solver: Solver) -> None:
    for problem in SMALL:
        if features(problem) <= solver.features:
            continue
        with pytest.raises(UnsupportedError, match="cannot carry") as caught:
            solve(problem, solver)
        told = re.fullmatch(rf"solver '{solver.name}' cannot carry (.+): use (.+)", str(caught.value))
        assert told, caught.value
        for lacking in features(problem) - solver.features:
            assert lacking.value in told[1]
        for other in told[2].split(" or "):
            assert features(problem) <= next(each.features for each in every() if each.name == other)


CONTRACT: tuple[Callable[[Solver], None], ...] = (
    finds_the_optimum_if_it_says_so,
    proves_a_bound_that_holds,
    gives_plans_that_are_allowed,
    is_no_worse_than_doing_nothing,
    says_the_same_of_the_same_problem,
    keeps_the_time_limit,
    has_an_answer_where_there_is_nothing_to_decide,
    refuses_the_rest_and_names_what_to_use,
)


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("solver", every(), ids=lambda solver: solver.name)
def test_a_solver(solver: Solver, clause: Callable[[Solver], None]) -> None:
    if lack := solver.missing():
        pytest.skip(lack)
    clause(solver)


def test_every_feature_is_asked_for_by_some_problem() -> None:
    asked = frozenset[Feature]().union(*map(features, SMALL))
    assert asked == frozenset(Feature)
    assert any(not features(problem) for problem in SMALL)
    assert all(features(problem) == features(again) for problem, again in zip(large_ones(), SMALL[::6], strict=True))


# -- the contract catches solvers that break it ---


def sound(problem: Problem, effort: Effort) -> SolverAnswer:
    return exact.SOLVER.run(problem, effort)


def lazy(problem: Problem, effort: Effort) -> SolverAnswer:
    """Says that doing nothing is best."""
    return SolverAnswer(keep(problem), None)


def blind(problem: Problem, effort: Effort) -> SolverAnswer:
    """Finds good plans, and takes their worth for a bound less a part of what is missing."""
    return (
        SolverAnswer(sound(problem, effort).assignment, -1e9) if effort.gap < 0.1 else SolverAnswer(keep(problem), -1e9)
    )


def slow(problem: Problem, effort: Effort) -> SolverAnswer:
    if len(problem.nodes) > 100:
        until_s = worked_s() + TIME_LIMIT_S + PATIENCE_S
        while worked_s() < until_s:
            pass
    return sound(problem, effort)


def idle(problem: Problem, effort: Effort) -> SolverAnswer:
    """Stops everybody, as if that were best."""
    return SolverAnswer({trainer.name: () for trainer in problem.trainers}, None)


_turns = itertools.count()


def moody(problem: Problem, effort: Effort) -> SolverAnswer:
    return (sound, lazy)[next(_turns) % 2](problem, effort)


def stubborn(problem: Problem, effort: Effort) -> SolverAnswer:
    assert problem.trainers, "there is always somebody"
    return sound(problem, effort)


def test_a_sound_solver_that_no_table_knows_keeps_the_contract() -> None:
    for clause in CONTRACT:
        clause(Solver("new", "", frozenset(), True, sound))


@pytest.mark.parametrize(
    ("run", "declares", "clause"),
    [
        (lazy, (), finds_the_optimum_if_it_says_so),
        (blind, (), proves_a_bound_that_holds),
        (sound, (Feature.CAPS,), gives_plans_that_are_allowed),
        (sound, (Feature.GROUPS,), gives_plans_that_are_allowed),
        (idle, (), is_no_worse_than_doing_nothing),
        (moody, (), says_the_same_of_the_same_problem),
        (slow, (), keeps_the_time_limit),
        (stubborn, (), has_an_answer_where_there_is_nothing_to_decide),
    ],
)
def test_a_solver_that_breaks_the_contract_is_caught(
    run: Callable[[Problem, Effort], SolverAnswer], declares: tuple[Feature, ...], clause: Callable[[Solver], None]
) -> None:
    with pytest.raises((AssertionError, PlanError)):
        clause(Solver("new", "", frozenset(declares), True, run))
