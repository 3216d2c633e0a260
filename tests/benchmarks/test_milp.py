"""The problems that the benchmark measures on, and its rows on the smallest of them."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.instances import FAMILIES, STARTS, Family, Start, build, redraw
from benchmarks.milp import LEAST_RATIO, Row, line, medians, ratios, rows, run, verdict
from milp import problem_from_json, problem_to_json, solve
from tests.support.messages import says, wording

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


def test_jobs_leave_some_trainers_below_nodes_min_and_a_redrawn_map_meets_all_constraints() -> None:
    problem = build("paper", 35, 800, 0)
    held = [(len(trainer.current), trainer) for trainer in problem.trainers]
    assert any(0 < count < trainer.nodes_min for count, trainer in held)
    again = redraw(problem, 1)
    assert again == redraw(problem, 1) != redraw(problem, 2)
    assert all(trainer.allows(len(trainer.current)) for trainer in again.trainers)
    assert [replace(trainer, current=()) for trainer in again.trainers] == [
        replace(trainer, current=()) for trainer in problem.trainers
    ]


def test_hpo_trials_are_identical_and_there_is_too_little_for_all() -> None:
    problem = build("hpo", 35, 800, 0)
    assert len({(t.curve, t.nodes_min, t.nodes_max, t.up_cost_s, t.down_cost_s) for t in problem.trainers}) == 1
    assert sum(solve(problem, "exact").counts.values()) == 800 < sum(t.nodes_max for t in problem.trainers)


def test_a_row_has_the_raw_values_and_what_equal_share_reaches_of_the_optimum() -> None:
    exact = Row("figure5", "exact", "paper", "random", 4, 30, repeats=3)
    out = io.StringIO()
    best, shared = run([exact, replace(exact, solver="equal-share")], out)
    assert len(best["cpu_s"]) == len(best["wall_s"]) == 3
    assert best["of_optimum"] == [1.0, 1.0, 1.0]
    assert all(0 < part <= 1 for part in shared["of_optimum"])
    assert len(out.getvalue().splitlines()) == 3


def test_a_solver_that_cannot_do_a_row_is_listed_with_the_reason() -> None:
    (result,) = run([Row("exact", "exact", "paper", "random", 4, 30, repeats=1, classes=3)], io.StringIO())
    assert "skipped: " + wording("milp.registry.cannot_carry", name="exact", features="several node classes") in line(
        result
    )


def test_a_solve_that_ran_out_of_time_is_told_with_the_gap_reached() -> None:
    row = Row("figure5", "highs-nodes", "paper", "random", 4, 30, repeats=2, time_limit_s=1.0)
    raw = {"cpu_s": [0.9, 0.1], "wall_s": [0.95, 0.1], "gap": [0.25, 0.0], "of_optimum": [0.8, 1.0]}
    told = line({"row": vars(row), "status": ["feasible", "optimal"], **raw})
    assert "2.5e-01" in told
    assert told.endswith(wording("benchmarks.milp.time_limit", limit_s=1, late=1, wall_s=2))


def test_every_row_of_the_full_table_has_instances_enough() -> None:
    every = list(rows(20, 10.0))
    assert all(row.repeats == 20 for row in every if row.part in ("exact", "classes"))
    assert {(row.trainers, row.nodes) for row in every if row.solver == "exact"} >= {
        (35, 800),
        (200, 5_000),
        (1_000, 20_000),
    }


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


def test_what_is_missed_is_said() -> None:
    results = [measured("exact", 1.5, 1.9, 9.0), measured("exact", 2.1, start="empty"), measured("highs", 40.0, 45, 41)]
    assert [one["met"] for one in medians(results)] == [True, False]
    ratio, times = verdict(results)
    assert says(ratio, "benchmarks.milp.ratio", family="paper  ", trainers=35, nodes=800, ratio=21.6)
    assert "MISSED: 25 or more" in ratio
    assert times == wording(
        "benchmarks.milp.exact_largest",
        size="35x800",
        median_ms="2.10",
        where="paper, empty",
        aim=wording("benchmarks.milp.missed", over=1, mine=2),
        aim_ms=2,
    )
    good = [measured("exact", 1.0), measured("highs", 30.0)]
    assert all("MISSED" not in told for told in verdict(good))


def test_the_full_table_has_a_ratio_for_every_family_at_two_sizes() -> None:
    every = [{"row": vars(row), "cpu_s": [1e-3]} for row in rows(20, 10.0)]
    assert len(ratios(every)) == 2 * len(FAMILIES)
    assert len(medians(every)) == 3 * len(FAMILIES) * len(STARTS)
