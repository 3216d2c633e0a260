"""The choice of a solver, and the baseline heuristic."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from milp import Cap, Curve, NodeGroup, NodeSpec, PlanError, Problem, UnsupportedError, solve, solver_names
from milp.solvers import registry as solvers
from milp.solvers.registry import Feature, Limits, Outcome, Solver

NAMES = ("auto", "exact", "capped", "classes", "highs", "gurobi", "highs-nodes", "gurobi-nodes", "equal-share")


def test_auto_takes_the_exact_solver_for_one_class(trainer, problem) -> None:
    assert solve(problem(2, trainer())).solver == "exact"
    assert solver_names() == NAMES


@pytest.mark.parametrize(
    ("name", "hint"), [("exakt", "did you mean 'exact'?"), ("zzz", f"use one of {', '.join(NAMES)}")]
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
    assert solve(hers).solver == "highs"
    assert solve(replace(mixed, trainers=(trainer(mixes_classes=True),))).solver == "highs"
    assert solve(replace(mixed, groups=(NodeGroup("leaf", ("n0", "n1")),))).solver == "highs"


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
        ({"caps": (Cap(1, user="ann"),)}, "a cap per user or account"),
        ({"groups": (NodeGroup("leaf", ("n0", "n1")),)}, "nodes that are used together"),
    ],
)
@pytest.mark.parametrize("solver", ["exact", "classes", "equal-share"])
def test_what_counts_alone_cannot_carry_is_refused_with_what_can(trainer, problem, change, word, solver: str) -> None:
    asks = replace(problem(4, trainer(user="ann")), **change)
    with pytest.raises(
        UnsupportedError, match=rf"^solver '{solver}' cannot carry {word}: use (capped or )?highs( or |$)"
    ) as caught:
        solve(asks, solver)
    assert caught.value.exit_code == 2


def test_mixing_is_refused_where_there_are_classes_to_mix(trainer, problem) -> None:
    mixing = trainer(mixes_classes=True)
    assert solve(problem(4, mixing), "exact").solver == "exact"
    with pytest.raises(UnsupportedError, match="cannot carry a trainer that mixes node classes: use highs"):
        solve(replace(two_classes(trainer), trainers=(mixing,)), "classes")


def test_the_papers_big_m_is_for_its_own_model(trainer, problem) -> None:
    with pytest.raises(UnsupportedError, match=r"'exact' cannot carry the paper's big-M: use highs-nodes"):
        solve(problem(2, trainer()), "exact", paper_big_m=True)
    assert solve(problem(2, trainer()), paper_big_m=True).solver == "highs-nodes"


def test_auto_says_what_to_do_when_no_solver_can_carry_the_problem(trainer, monkeypatch) -> None:
    monkeypatch.setattr(solvers, "_ALL", tuple(s for s in solvers._ALL if s.name in ("exact", "equal-share")))
    with pytest.raises(UnsupportedError, match=r"^no solver can carry several node classes: pip install highspy"):
        solve(two_classes(trainer))


def test_a_new_solver_that_declares_a_feature_is_found_and_named(trainer, monkeypatch) -> None:
    capable = Solver(
        "capable", "", frozenset({Feature.NODE_CLASSES}), True, lambda p, _: Outcome({"a": ("n0",)}, bound=100.0)
    )
    exact = tuple(solver for solver in solvers._ALL if solver.name == "exact")
    monkeypatch.setattr(solvers, "_ALL", (*exact, capable))
    assert solve(two_classes(trainer)).solver == "capable"
    with pytest.raises(UnsupportedError, match=r"'exact' cannot carry several node classes: use capable$"):
        solve(two_classes(trainer), "exact")


def test_a_solver_that_is_not_installed_says_so_and_auto_passes_it_over(trainer, problem, monkeypatch) -> None:
    absent = Solver("absent", "", frozenset(), True, lambda p, _: pytest.fail("ran"), lambda: "pip install absent")
    monkeypatch.setattr(solvers, "_ALL", (absent, *solvers._ALL))
    assert solve(problem(2, trainer())).solver == "exact"
    with pytest.raises(UnsupportedError, match=r"'absent' is not ready \(pip install absent\): use exact"):
        solve(problem(2, trainer()), "absent")


@pytest.mark.parametrize(
    ("bound", "status"), [(200.0, "optimal"), (200.0001, "optimal"), (220.0, "feasible"), (math.inf, "feasible")]
)
def test_the_status_says_what_was_proven(trainer, problem, monkeypatch, bound: float, status: str) -> None:
    outcome = Outcome({"a": ("n0", "n1")}, bound)
    monkeypatch.setattr(solvers, "_ALL", (Solver("fixed", "", frozenset(), True, lambda p, _: outcome),))
    plan = solve(problem(3, trainer()))
    assert plan.status == status
    # Where nothing is proven, what the trainer would earn on all nodes is.
    assert plan.bound == (300.0 if bound == math.inf else bound)


@pytest.mark.parametrize("worse", [None, {"a": ()}, {"a": ("n0",)}])
def test_a_map_worse_than_the_current_one_is_not_taken(trainer, problem, monkeypatch, worse) -> None:
    outcome = Outcome(worse, math.inf)
    monkeypatch.setattr(solvers, "_ALL", (Solver("fixed", "", frozenset(), True, lambda p, _: outcome),))
    plan = solve(problem(3, trainer(current=("n1", "n2"))))
    assert (plan.status, plan.assignment) == ("kept", {"a": ("n1", "n2")})
    assert plan.reasons == {"a": "keeps its 2 nodes: no better plan was found in time"}


def test_the_baseline_may_be_worse_than_the_current_map(trainer, problem) -> None:
    good, poor = trainer("good", current=("n0", "n1", "n2")), trainer("poor", curve=Curve((0, 8), (0.0, 0.8)))
    assert solve(problem(4, poor, good), "equal-share").counts == {"poor": 2, "good": 2}


def test_limits_reach_the_solver(trainer, problem, monkeypatch) -> None:
    seen: list[Limits] = []

    def run(problem: Problem, limits: Limits) -> Outcome:
        seen.append(limits)
        return Outcome({"a": ()}, None)

    monkeypatch.setattr(solvers, "_ALL", (Solver("fixed", "", frozenset(), True, run),))
    solve(problem(2, trainer()), time_limit_s=3.0, gap=0.01)
    assert seen == [Limits(3.0, 0.01)]


def test_nonsense_from_a_solver_never_leaves_solve(trainer, problem, monkeypatch) -> None:
    broken = Solver("broken", "", frozenset(), True, lambda p, _: Outcome({"a": ("n0", "n0")}, None))
    monkeypatch.setattr(solvers, "_ALL", (broken,))
    with pytest.raises(PlanError, match="node n0 is assigned 2 times"):
        solve(problem(2, trainer()))


def test_equal_share_divides_evenly_and_gives_the_remainder_to_the_first(trainer, problem) -> None:
    plan = solve(problem(11, trainer("a"), trainer("b"), trainer("c")), "equal-share")
    assert plan.counts == {"a": 5, "b": 3, "c": 3}


def test_equal_share_passes_what_a_small_trainer_leaves_to_the_others(trainer, problem) -> None:
    plan = solve(problem(12, trainer("a", nodes_max=2), trainer("b"), trainer("c")), "equal-share")
    assert plan.counts == {"a": 2, "b": 6, "c": 4}


def test_equal_share_gives_a_share_of_just_nodes_min_only_from_the_remainder(trainer, problem) -> None:
    # A share of 3 does not exceed b's nodes_min, so b gets nothing at first; then a, who came first, takes it all.
    assert solve(problem(6, trainer("a"), trainer("b", nodes_min=3)), "equal-share").counts == {"a": 6, "b": 0}
    # A smaller a leaves enough for b.
    small = trainer("a", nodes_max=3)
    assert solve(problem(6, small, trainer("b", nodes_min=3)), "equal-share").counts == {"a": 3, "b": 3}


def test_equal_share_skips_a_trainer_that_the_remainder_cannot_start(trainer, problem) -> None:
    plan = solve(problem(6, trainer("a", nodes_min=5), trainer("b", nodes_max=3), trainer("c")), "equal-share")
    assert plan.counts == {"a": 0, "b": 3, "c": 3}


def test_equal_share_keeps_to_listed_sizes(trainer, problem) -> None:
    plan = solve(problem(7, trainer("a", sizes=(1, 2, 4, 8)), trainer("b", sizes=(2, 4))), "equal-share")
    assert plan.counts == {"a": 4, "b": 2}
