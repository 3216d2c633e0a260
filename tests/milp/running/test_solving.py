"""What `milp.solve` says of its plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from milp import Plan, Problem, UnsupportedError, solve, verify
from milp.running import solving
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.registry import every


def test_without_explain_no_sentence_is_written_and_nothing_else_differs(trainer, problem, monkeypatch) -> None:
    asked = problem(5, trainer("a", current=("n0",)), trainer("b"))
    told = solve(asked)
    assert told.reasons.keys() == {"a", "b"}
    monkeypatch.setattr(solving, "sentences", lambda *_: pytest.fail("wrote sentences"))
    silent = solve(asked, explain=False)
    assert silent.reasons == {}
    assert replace(silent, reasons=told.reasons, wall_s=told.wall_s) == told
    verify(asked, silent)


def test_without_explain_not_even_a_kept_map_has_sentences(trainer, problem) -> None:
    capped = problem(4, trainer("a", current=("n0",)))
    assert solve(capped, "highs", time_limit_s=0).reasons.keys() == {"a"}
    assert solve(capped, "highs", time_limit_s=0, explain=False).reasons == {}


def test_a_plan_knows_the_very_problem_that_it_was_verified_for(trainer, problem) -> None:
    asked = problem(3, trainer())
    plan = solve(asked)
    assert plan.verified_for is asked
    assert replace(plan).verified_for is None
    with pytest.raises(TypeError):
        Plan({}, {}, 0.0, 0.0, 0.0, "optimal", "hand", 0.0, {}, verified_for=asked)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="verified_for"):
        replace(plan, verified_for=asked)


@pytest.mark.parametrize("field", ["assignment", "counts", "reasons"])
def test_a_verified_plan_stays_as_it_was_verified(trainer, problem, field: str) -> None:
    plan = solve(problem(3, trainer()))
    with pytest.raises(TypeError):
        getattr(plan, field)["a"] = ()


# -- in whose place another solver makes the plan ---


def stub(name: str, run: Callable[[Problem, Effort], SolverAnswer], *, engine: str = "an engine") -> Solver:
    """A solver on an engine, which finds optima as far as it says."""
    return Solver(name, "", frozenset(Feature), True, run, engine=engine)


def asked_in_turn(monkeypatch: pytest.MonkeyPatch, *solvers: Solver) -> None:
    monkeypatch.setattr(solving, "in_turn", lambda *args, **options: ([*solvers], {}))


def refuses(problem: Problem, effort: Effort) -> SolverAnswer:
    raise UnsupportedError("it has no licence")


def crashes(problem: Problem, effort: Effort) -> SolverAnswer:
    raise RuntimeError


def talks_nonsense(problem: Problem, effort: Effort) -> SolverAnswer:
    return SolverAnswer({"a": ("nowhere",)}, bound=None)


def dies(problem: Problem, effort: Effort) -> SolverAnswer:
    return SolverAnswer(None, math.inf, died=True)


def is_late(problem: Problem, effort: Effort) -> SolverAnswer:
    return SolverAnswer(None, math.inf)


EXACT = next(solver for solver in every() if solver.name == "exact")


@pytest.mark.parametrize("run", [refuses, crashes, talks_nonsense, dies, is_late])
def test_a_solver_that_fails_in_any_way_is_followed_by_the_next_and_the_plan_says_so(
    run: Callable[[Problem, Effort], SolverAnswer], trainer, problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_in_turn(monkeypatch, stub("first", run), EXACT)
    plan = solve(problem(4, trainer()), "first", time_limit_s=1.0, fallback=True)
    assert (plan.solver, plan.counts, plan.status) == ("exact", {"a": 4}, "optimal")
    assert plan.failed.keys() == {"first"}
    assert all(plan.failed.values())
    assert plan.verified_for is not None


def test_a_solver_that_only_lacks_the_proof_has_not_failed(trainer, problem, monkeypatch) -> None:
    best = stub("first", lambda problem, effort: SolverAnswer({"a": ("n0", "n1"), "b": ()}, math.inf))
    asked_in_turn(monkeypatch, best, EXACT)
    plan = solve(problem(2, trainer(), trainer("b")), "first", time_limit_s=1.0, fallback=True)
    assert (plan.counts, plan.status, dict(plan.failed)) == ({"a": 2, "b": 0}, "optimal", {})


def test_where_the_one_that_follows_does_worse_the_plan_of_the_first_is_taken(trainer, problem, monkeypatch) -> None:
    best = stub("first", lambda problem, effort: SolverAnswer({"a": ("n0", "n1"), "b": ()}, math.inf))
    asked_in_turn(monkeypatch, best, stub("second", is_late), stub("third", crashes))
    plan = solve(problem(2, trainer(), trainer("b")), "first", time_limit_s=1.0, fallback=True)
    assert (plan.solver, plan.counts["a"], plan.failed.keys()) == ("first", 2, {"second", "third"})


def test_who_follows_an_engine_has_time_left_within_the_limit(trainer, problem, monkeypatch) -> None:
    left_s: list[float] = []

    def takes_all(problem: Problem, effort: Effort) -> SolverAnswer:
        left_s.append(effort.left_s)
        return SolverAnswer(None, math.inf)

    asked_in_turn(monkeypatch, *(stub(name, takes_all) for name in "abc"))
    solve(problem(2, trainer()), "a", time_limit_s=1000.0, fallback=True)
    first, second, last = left_s
    assert 700 < first <= 750
    assert 700 < second <= 750  # the first has taken no time
    assert 990 < last <= 1000


def test_without_a_fallback_a_solver_that_has_a_name_fails_alone(trainer, problem, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError):
        solve(problem(2, trainer()), "gurobi")
    plan = solve(problem(2, trainer()), "gurobi", fallback=True)
    assert (plan.solver, plan.failed.keys()) == ("exact", {"gurobi", "highs"})


def test_where_all_fail_the_last_one_says_why(trainer, problem, monkeypatch) -> None:
    asked_in_turn(monkeypatch, stub("first", refuses), stub("last", crashes))
    with pytest.raises(RuntimeError):
        solve(problem(2, trainer()), "first", fallback=True)
