"""The choice of a solver, and what becomes of its answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from milp import Cap, NodeGroup, NodeSpec, PlanError, Problem, UnsupportedError, solve, solver_names
from milp.running import solving
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.registry import choose, every, in_turn
from tests.support.messages import pattern, wording

NAMES = (
    "auto",
    "exact",
    "capped",
    "classes",
    "highs",
    "gurobi",
    "highs-nodes",
    "gurobi-nodes",
    "paper-nodes",
    "equal-share",
)


def test_auto_takes_the_exact_solver_for_one_class(trainer, problem) -> None:
    assert solve(problem(2, trainer())).solver == "exact"
    assert set(NAMES) <= set(solver_names())


@pytest.mark.parametrize(
    ("name", "hint"),
    [("exakt", wording("sizing.fields.hint", near="'exact'")), ("zzz", f"use one of {', '.join(solver_names())}")],
)
def test_an_unknown_solver_is_refused_with_what_is_known(trainer, problem, name: str, hint: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        solve(problem(2, trainer()), name)
    assert str(caught.value) == f"unknown solver {name!r}: {hint}"
    assert caught.value.exit_code == 2


def two_classes(trainer) -> Problem:
    return Problem((NodeSpec("n0", "a100"), NodeSpec("n1", "v100")), (trainer(),), 100.0)


def test_auto_takes_multipliers_for_several_classes_and_a_program_for_all_else(trainer) -> None:
    mixed = two_classes(trainer)
    assert solve(mixed).solver == "classes"
    assert solve(replace(mixed, caps=(Cap(1, user="ann"),))).solver == "classes"  # nobody is ann's
    hers = replace(mixed, trainers=(trainer(user="ann"),), caps=(Cap(1, user="ann"),))
    program = "highs" if every_of("gurobi").missing() else "gurobi"
    assert solve(hers).solver == program
    assert solve(replace(mixed, trainers=(trainer(mixes_classes=True),))).solver == program
    assert solve(replace(mixed, groups=(NodeGroup("leaf", ("n0", "n1")),))).solver == program


def every_of(name: str) -> Solver:
    return next(solver for solver in every() if solver.name == name)


@pytest.mark.parametrize("name", ["gurobi", "gurobi-nodes", "highs", "exact", "stepwise", "no-such-solver"])
def test_whoever_fails_is_followed_by_others_of_which_the_last_computes_by_itself(trainer, problem, name: str) -> None:
    line, failed = in_turn(problem(4, trainer()), name, fallback=True)
    assert name in [line[0].name, *failed]
    assert not line[0 if name == "stepwise" else -1].engine
    assert not any(solver.compares for solver in line if solver.name != name)
    asked = [solver.name for solver in line]
    if name.startswith("gurobi") and name not in failed:
        assert asked[1] == "highs"
    rest, _ = in_turn(problem(4, trainer()), name, fallback=True, without={name, "highs"})
    assert [solver.name for solver in rest] == [other for other in asked if other not in (name, "highs")]


def test_auto_passes_over_an_engine_that_refuses_and_says_so(trainer, monkeypatch) -> None:
    def refuses(problem: Problem, effort: Effort) -> SolverAnswer:
        raise UnsupportedError("too large for the licence")

    mixing = replace(two_classes(trainer), trainers=(trainer(mixes_classes=True),))
    refused = Solver("small", "", frozenset(Feature), True, refuses, engine="small")
    line, _ = in_turn(mixing, "auto", fallback=False)
    monkeypatch.setattr(solving, "in_turn", lambda *args, **options: ([refused, every_of("highs")], {}))
    assert {solver.name for solver in line} <= {"gurobi", "highs"}
    plan = solve(mixing)
    assert (plan.solver, plan.failed.keys(), plan.status) == ("highs", {"small"}, "optimal")


def test_limits_that_cannot_bind_ask_for_nothing(trainer, problem) -> None:
    loose = replace(
        problem(4, trainer(user="ann", nodes_max=2, mixes_classes=True)),
        caps=(Cap(2, user="ann"),),
        groups=(NodeGroup("leaf", ("n0",)),),
    )
    assert solve(loose, "exact").counts == {"a": 2}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"caps": (Cap(1, user="ann"),)}, pattern("milp.solver.caps")),
        ({"groups": (NodeGroup("leaf", ("n0", "n1")),)}, pattern("milp.solver.groups")),
    ],
)
@pytest.mark.parametrize("solver", ["exact", "classes", "equal-share"])
def test_what_counts_alone_cannot_carry_is_refused_with_what_can(trainer, problem, change, word, solver: str) -> None:
    asks = replace(problem(4, trainer(user="ann")), **change)
    with pytest.raises(
        UnsupportedError, match=rf"^solver '{solver}' cannot carry {word}: use (capped or )?(gurobi or )?highs( or |$)"
    ) as caught:
        solve(asks, solver)
    assert caught.value.exit_code == 2


def test_mixing_is_refused_where_there_are_classes_to_mix(trainer, problem) -> None:
    mixing = trainer(mixes_classes=True)
    assert solve(problem(4, mixing), "exact").solver == "exact"
    with pytest.raises(UnsupportedError, match="cannot carry " + pattern("milp.solver.mixing") + ": use .*highs"):
        solve(replace(two_classes(trainer), trainers=(mixing,)), "classes")


def test_auto_never_takes_the_papers_big_m_nor_a_baseline() -> None:
    assert {solver.name for solver in every() if not solver.proves} >= {"paper-nodes", "equal-share"}


def test_auto_says_what_to_do_when_no_solver_can_carry_the_problem(trainer) -> None:
    simple = [solver for solver in every() if solver.name in ("exact", "equal-share")]
    with pytest.raises(
        UnsupportedError,
        match="^" + pattern("milp.registry.none_can_carry", asked="several node classes", asked2="pip install highspy"),
    ):
        choose(two_classes(trainer), "auto", simple)


def fixed(answer: SolverAnswer) -> Solver:
    """A solver that carries nothing special and always says the same."""
    return Solver("fixed", "", frozenset(), True, lambda problem, effort: answer)


def test_a_new_solver_that_declares_a_feature_is_found_and_named(trainer) -> None:
    capable = Solver(
        "capable", "", frozenset({Feature.NODE_CLASSES}), True, lambda p, _: SolverAnswer({"a": ("n0",)}, bound=100.0)
    )
    table = [*(solver for solver in every() if solver.name == "exact"), capable]
    assert choose(two_classes(trainer), "auto", table) is capable
    assert solve(two_classes(trainer), capable).solver == "capable"
    with pytest.raises(
        UnsupportedError,
        match=pattern("milp.registry.cannot_carry", name="exact", features="several node classes: use capable") + "$",
    ):
        choose(two_classes(trainer), "exact", table)


def test_a_solver_that_is_not_installed_says_so_and_auto_passes_it_over(trainer, problem) -> None:
    absent = Solver("absent", "", frozenset(), True, lambda p, _: pytest.fail("ran"), lambda: "pip install absent")
    small, table = problem(2, trainer()), (absent, *every())
    assert choose(small, "auto", table).name == "exact"
    with pytest.raises(UnsupportedError, match=r"'absent' is not ready \(pip install absent\): use exact"):
        choose(small, "absent", table)
    with pytest.raises(UnsupportedError, match=r"'absent' is not ready \(pip install absent\): use exact"):
        solve(small, absent)


@pytest.mark.parametrize(
    ("bound", "status"), [(200.0, "optimal"), (200.0001, "optimal"), (220.0, "feasible"), (math.inf, "feasible")]
)
def test_the_status_says_what_was_proven(trainer, problem, bound: float, status: str) -> None:
    plan = solve(problem(3, trainer()), fixed(SolverAnswer({"a": ("n0", "n1")}, bound)))
    assert plan.status == status
    # Where nothing is proven, what the trainer would earn on all nodes is.
    assert plan.bound == (300.0 if bound == math.inf else bound)


@pytest.mark.parametrize("worse", [None, {"a": ()}, {"a": ("n0",)}])
def test_a_map_worse_than_the_current_one_is_not_taken(trainer, problem, worse) -> None:
    plan = solve(problem(3, trainer(current=("n1", "n2"))), fixed(SolverAnswer(worse, math.inf)))
    assert (plan.status, plan.assignment) == ("kept", {"a": ("n1", "n2")})
    assert plan.reasons == {"a": "keeps its 2 nodes: " + wording("milp.solver.no_better_plan")}


def test_gap_and_time_limit_reach_the_solver(trainer, problem) -> None:
    seen: list[Effort] = []

    def run(problem: Problem, effort: Effort) -> SolverAnswer:
        seen.append(effort)
        assert math.isinf(effort.left_s) or 2.0 < effort.left_s <= 3.0
        return SolverAnswer({"a": ()}, None)

    solver = Solver("fixed", "", frozenset(), True, run)
    solve(problem(2, trainer()), solver, time_limit_s=3.0, gap=0.01)
    solve(problem(2, trainer()), solver)
    assert [effort.gap for effort in seen] == [0.01, 1e-4]
    assert math.isinf(seen[1].left_s)


def test_an_effort_is_over_at_its_deadline() -> None:
    readings = iter([4.0, 5.0])
    effort = Effort(0.0, 5.0, lambda: next(readings))
    assert not effort.is_over()
    assert effort.is_over()


def test_nonsense_from_a_solver_never_leaves_solve(trainer, problem) -> None:
    with pytest.raises(PlanError, match=pattern("milp.checking.assigned_often", node="n0", times=2)):
        solve(problem(2, trainer()), fixed(SolverAnswer({"a": ("n0", "n0")}, None)))
