"""What becomes of an engine's answer when the engine says that its point is worth what it is not."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from milp import solve
from milp.running import child, process
from milp.solvers.programs.linear import Engine, Linear, Report, Solution, optimise_checked
from milp.solvers.programs.programs import ENGINES

pytestmark = pytest.mark.slow


def program() -> Linear:
    """At most 3 of a whole column that is worth 2 each: 6."""
    linear = Linear()
    linear.row("", [(linear.column(0, 4, integer=True, objective=2.0), 1.0)], high=3)
    return linear


def liar(*answers: Solution, tells: tuple[float, ...] = ()) -> tuple[Engine, list[object]]:
    """An engine that gives these answers in turn, after it has told of the points; and the starts that it was given."""
    starts: list[object] = []
    left = iter(answers)

    def optimise(linear, start, report: Report, *, gap: float, time_limit_s: float) -> Solution:
        starts.append(start)
        for x in tells:
            report((x,), 6.0)
        return next(left)

    return Engine("liar", "Liar", "", False, optimise, lambda: None), starts


def answered(engine: Engine) -> Solution:
    ticks = itertools.count()
    return optimise_checked(
        engine, program(), (1.0,), lambda x, bound: None, gap=0.0, time_limit_s=10.0, clock=lambda: float(next(ticks))
    )


LIE = Solution((1.0,), 6.0, optimal=True, value=6.0)
TRUTH = Solution((3.0,), 6.0, optimal=True, value=6.0 + 1e-9)


def test_an_engine_that_says_the_truth_but_for_rounding_is_believed() -> None:
    engine, starts = liar(TRUTH)
    assert answered(engine) == TRUTH
    assert len(starts) == 1


def test_the_point_told_on_the_way_is_taken_where_it_has_the_value_that_the_returned_one_has_not() -> None:
    engine, starts = liar(LIE, tells=(2.0, 3.0, 1.0))
    found = answered(engine)
    assert (found.x, found.bound, found.distrusted) == ((3.0,), 6.0, True)
    assert len(starts) == 1


@pytest.mark.parametrize("tells", [(), (1.0, 2.0), (4.0,)])  # nothing, nothing so good, and a point that is not allowed
def test_else_it_solves_once_more_without_a_start(tells: tuple[float, ...]) -> None:
    engine, starts = liar(LIE, TRUTH, tells=tells)
    found = answered(engine)
    assert (found.x, found.bound, found.distrusted) == ((3.0,), 6.0, True)
    assert starts == [(1.0,), None]


def test_the_bound_of_an_engine_that_is_wrong_twice_counts_for_nothing_and_its_best_point_is_taken() -> None:
    engine, _ = liar(LIE, LIE, tells=(2.0,))
    found = answered(engine)
    assert (found.x, found.bound, found.distrusted, found.optimal) == ((2.0,), None, True, False)


@pytest.mark.parametrize("solver", ["highs", "highs-nodes", "gurobi", "gurobi-nodes"])
def test_a_plan_made_with_an_engine_that_lies_is_the_best_all_the_same_and_says_so(
    solver: str, trainer: Callable, problem: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = solver.removesuffix("-nodes")
    engine = ENGINES[name]
    if importlib.util.find_spec(engine.package) is None:
        pytest.skip(f"{engine.package} is not installed")

    def lying(linear, start, report, *, gap: float, time_limit_s: float) -> Solution:
        found = engine.optimise(linear, start, lambda x, bound: None, gap=gap, time_limit_s=time_limit_s)
        return found if start is None else replace(found, x=tuple(start))

    def answer(worker: object, request: process.SolveRequest, effort: object) -> process.News:
        return replace(child.solved(request, io.BytesIO()), final=True)

    growing = problem(6, trainer("a", current=("n0",)), trainer("b", current=("n1",)))
    honest = solve(growing, solver)
    assert (honest.distrusted, honest.objective > 0) == ((), True)
    monkeypatch.setitem(ENGINES, name, replace(engine, optimise=lying))  # type: ignore[call-overload]
    monkeypatch.setattr(process, "_ask", answer)
    monkeypatch.setattr(process, "_take", lambda: None)
    monkeypatch.setattr(process, "Worker", lambda engine: None)
    plan = solve(growing, solver)
    assert plan.objective == pytest.approx(honest.objective)
    assert (plan.status, plan.distrusted) == ("optimal", (name,))


def test_a_bound_told_before_the_engine_was_found_wrong_is_forgotten() -> None:
    stream = io.BytesIO()
    process.write(stream, process.News({"a": ()}, 5.0))
    process.write(stream, process.News(final=True, distrusted=True))
    best = process._latest(process.News(), bytearray(stream.getvalue()))
    assert (best.assignment, best.bound, best.distrusted) == ({"a": ()}, math.inf, True)
