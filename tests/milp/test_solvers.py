"""The choice of a solver, and the baseline heuristic."""

from __future__ import annotations

import pytest

from milp import NodeSpec, PlanError, Problem, UnsupportedError, solve, solver_names, solvers
from milp.solvers import Feature, Limits, Outcome, Solver


def test_auto_takes_the_exact_solver_for_one_class(trainer, problem) -> None:
    assert solve(problem(2, trainer())).solver == "exact"
    assert solver_names() == ("auto", "exact", "equal-share")


@pytest.mark.parametrize(
    ("name", "hint"), [("exakt", "did you mean 'exact'?"), ("zzz", "use one of auto, exact, equal-share")]
)
def test_an_unknown_solver_is_refused_with_what_is_known(trainer, problem, name: str, hint: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        solve(problem(2, trainer()), name)
    assert str(caught.value) == f"unknown solver {name!r}: {hint}"
    assert caught.value.exit_code == 2


def two_classes(trainer) -> Problem:
    return Problem((NodeSpec("n0", "a100"), NodeSpec("n1", "v100")), (trainer(),), 100.0)


def test_auto_says_what_to_do_when_no_solver_can_carry_the_problem(trainer) -> None:
    with pytest.raises(UnsupportedError, match=r"^no solver can carry several node classes: solve one problem for"):
        solve(two_classes(trainer))


def test_a_new_solver_that_declares_a_feature_is_found_and_named(trainer, monkeypatch) -> None:
    capable = Solver(
        "capable", "", frozenset({Feature.NODE_CLASSES}), True, lambda p, _: Outcome({"a": ("n0",)}, bound=100.0)
    )
    monkeypatch.setattr(solvers, "_ALL", (*solvers._ALL, capable))
    assert solve(two_classes(trainer)).solver == "capable"
    with pytest.raises(UnsupportedError, match=r"'exact' cannot carry several node classes: use capable$"):
        solve(two_classes(trainer), "exact")


def test_a_solver_that_is_not_installed_says_so_and_auto_passes_it_over(trainer, problem, monkeypatch) -> None:
    absent = Solver("absent", "", frozenset(), True, lambda p, _: pytest.fail("ran"), lambda: "pip install absent")
    monkeypatch.setattr(solvers, "_ALL", (absent, *solvers._ALL))
    assert solve(problem(2, trainer())).solver == "exact"
    with pytest.raises(UnsupportedError, match=r"'absent' is not ready \(pip install absent\): use exact$"):
        solve(problem(2, trainer()), "absent")


@pytest.mark.parametrize(
    ("bound", "kept", "status"),
    [(200.0, False, "optimal"), (200.0001, False, "optimal"), (220.0, False, "feasible"), (200.0, True, "kept")],
)
def test_the_status_says_what_was_proven(trainer, problem, monkeypatch, bound: float, kept: bool, status: str) -> None:
    outcome = Outcome({"a": ("n0", "n1")}, bound, kept)
    monkeypatch.setattr(solvers, "_ALL", (Solver("fixed", "", frozenset(), True, lambda p, _: outcome),))
    assert solve(problem(2, trainer())).status == status


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
