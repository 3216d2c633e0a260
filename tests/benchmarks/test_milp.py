"""The problems that the benchmark measures on, and its rows on the smallest of them."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import milp as benchmark
from benchmarks.instances import FAMILIES, STARTS, Family, Start, build
from benchmarks.milp import LEAST_RATIO, Row, medians, ratios, run
from milp import problem_from_json, problem_to_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("start", "classes"), [*((start, 1) for start in STARTS), ("random", 3), ("empty", 3)])
def test_a_problem_is_named_by_its_seed_and_is_valid(family: Family, start: Start, classes: int) -> None:
    problem = build(family, 12, 200, 7, start=start, classes=classes)
    assert problem == build(family, 12, 200, 7, start=start, classes=classes)
    assert problem != build(family, 12, 200, 8, start=start, classes=classes) or family == "hpo"
    assert problem_from_json(problem_to_json(problem)) == problem
    assert (len(problem.trainers), len(problem.nodes), len(problem.classes)) == (12, 200, classes)
    assert all(len(problem.classes_of(trainer.current)) <= 1 for trainer in problem.trainers)
    assert any(trainer.current for trainer in problem.trainers) == (start != "empty")


def test_a_row_has_the_raw_values_and_what_equal_share_reaches_of_the_optimum() -> None:
    exact = Row("figure5", "exact", "paper", "random", 4, 30, repeats=3)
    out = io.StringIO()
    best, shared = run([exact, replace(exact, solver="equal-share")], out)
    assert len(best["cpu_s"]) == len(best["wall_s"]) == 3
    assert best["of_optimum"] == [1.0, 1.0, 1.0]
    assert all(0 < part <= 1 for part in shared["of_optimum"])
    assert len(out.getvalue().splitlines()) == 3


def measured(solver: str, *cpu_ms: float, start: Start = "random", size: tuple[int, int] = (35, 800)) -> dict[str, Any]:
    row = Row(solver, solver, "paper", start, *size, repeats=len(cpu_ms))
    return {"row": vars(row), "cpu_s": [value / 1e3 for value in cpu_ms]}


def test_the_ratio_is_of_medians_on_the_instances_that_both_solved() -> None:
    results = [measured("exact", 1.0, 2.0, 3.0, 900.0), measured("highs", 30.0, 80.0, 60.0)]
    results.append(measured("exact", 1000.0, start="empty"))
    (one,) = ratios(results)
    assert (one["ratio"], one["least"], one["most"], one["n"]) == pytest.approx((30.0, 20.0, 40.0, 3))
    assert one["met"] == (LEAST_RATIO <= 30)
    assert [ratios(results[:1]), ratios(results[1:])] == [[], []]
    times = medians([measured("exact", 1.5, 1.9, 9.0), measured("exact", 2.1, start="empty")])
    assert [one["met"] for one in times] == [True, False]


def test_the_tables_mark_what_is_beyond_its_bound_and_leave_out_what_did_not_run() -> None:
    results = [measured("exact", 1.5, 1.9, 9.0), measured("exact", 2.5), measured("exact", 1.0)]
    for result, family in zip(results, FAMILIES, strict=True):
        result["row"] = {**result["row"], "family": family}
    found = {"ratios": ratios(results), "results": results}
    (row,) = benchmark.times(found).splitlines()[2:]
    assert row == "| 35 x 800, a random map | 1.9, worst 9.0 | 2.5, worst 2.5, missed | 1.0, worst 1.0 | 2 |"
    assert [benchmark.compared(found), benchmark.caps_that_cross(found), benchmark.figure_5(found)] == ["", "", ""]
    (plan,) = benchmark.EVIDENCE["milp"].figures(found).values()
    assert (plan.text, plan.interval) == ("1.0-2.5 ms, missed in 1 of 3", (1.0, 9.0))
