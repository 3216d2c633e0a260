"""Cases worked out by hand, and sizes that brute force cannot reach."""

from __future__ import annotations

import random

import numpy as np
import pytest

from milp import Curve, NodeSpec, Problem, TrainerSpec, UnsupportedError, solve
from milp.solvers.one_class.dual import minimise
from milp.solvers.one_class.exact import best_counts, survivors
from milp.solvers.one_class.tables import tabulate

pytestmark = pytest.mark.slow


def test_a_curve_that_pays_only_at_eight_nodes_is_not_missed_by_looking_one_node_ahead(trainer, problem) -> None:
    steep = trainer("steep", curve=Curve((0, 2, 4, 8), (0.0, 1.0, 1.5, 20.0)))
    flat = trainer("flat", curve=Curve((0, 8), (0.0, 16.0)))
    plan = solve(problem(8, steep, flat))
    assert plan.counts == {"steep": 8, "flat": 0}
    assert plan.objective == 2000


def test_growing_pays_only_when_the_future_is_longer_than_the_stall(trainer, problem) -> None:
    # 4 -> 8 nodes gains 4/s and stalls 4/s for 10 s: even at 10 s.
    holds = trainer(current=("n0", "n1", "n2", "n3"))
    assert solve(problem(8, holds, t_fwd_s=9.9999)).counts == {"a": 4}
    assert solve(problem(8, holds, t_fwd_s=10.0)).counts == {"a": 4}
    assert solve(problem(8, holds, t_fwd_s=10.0001)).counts == {"a": 8}


def test_a_trainer_below_nodes_min_pays_nothing_to_grow_back(trainer, problem) -> None:
    cut = trainer(nodes_min=3, current=("n0", "n1"), up_cost_s=1e6)
    plan = solve(problem(4, cut))
    assert plan.counts == {"a": 4}
    assert plan.objective == 400


def test_a_trainer_that_cannot_reach_nodes_min_gives_up_its_nodes(trainer, problem) -> None:
    cut = trainer("cut", nodes_min=4, current=("n0", "n1"))
    other = trainer("other", nodes_max=2)
    assert solve(problem(3, cut, other)).counts == {"cut": 0, "other": 2}


def test_a_trainer_over_nodes_max_shrinks_to_it_at_the_cost_of_shrinking(trainer, problem) -> None:
    over = trainer(nodes_max=2, current=("n0", "n1", "n2"))
    plan = solve(problem(3, over))
    assert plan.counts == {"a": 2}
    assert plan.objective == 100 * 2 - 3 * 5


@pytest.mark.parametrize("cost_s", [1e6, 1e13, 1e29])
@pytest.mark.parametrize("solver", ["exact", "classes"])
def test_a_prohibitive_cost_does_not_drown_what_plans_really_differ_by(trainer, problem, cost_s, solver) -> None:
    # Regression: rounding and tie-breaks were relative to the largest cost, and "optimal" plans were far from it.
    never = trainer("never", up_cost_s=cost_s, current=("n0", "n1"))
    others = [trainer(name, curve=Curve((0, 8), (0.0, top))) for name, top in (("b", 3.0), ("c", 3.1))]
    plan = solve(problem(12, never, *others, t_fwd_s=1.0), solver)
    assert plan.counts == {"never": 2, "b": 2, "c": 8}


def test_only_listed_sizes_are_used(trainer, problem) -> None:
    assert solve(problem(7, trainer(sizes=(1, 2, 4, 8)))).counts == {"a": 4}
    assert solve(problem(7, trainer(sizes=(8,)))).counts == {"a": 0}


def test_a_falling_curve_is_left_at_its_peak(trainer, problem) -> None:
    assert solve(problem(8, trainer(curve=Curve((0, 3, 8), (0.0, 5.0, 1.0))))).counts == {"a": 3}


def test_weight_decides_between_equal_trainers_and_order_between_equal_weights(trainer, problem) -> None:
    assert solve(problem(4, trainer("a", nodes_min=4), trainer("b", nodes_min=4))).counts == {"a": 4, "b": 0}
    assert solve(problem(4, trainer("a", nodes_min=4), trainer("b", nodes_min=4, weight=2.0))).counts == {
        "a": 0,
        "b": 4,
    }


def test_nodes_that_add_nothing_are_not_taken_and_those_held_are_kept(trainer, problem) -> None:
    flat = Curve((0, 2), (0.0, 2.0))
    assert solve(problem(4, trainer(curve=flat))).counts == {"a": 2}
    held = trainer(curve=flat, current=("n0", "n1", "n2"), down_cost_s=0.0)
    assert solve(problem(4, held)).counts == {"a": 3}


def test_no_trainers_and_no_nodes_are_problems_too(trainer, problem) -> None:
    assert solve(problem(3)).counts == {}
    assert solve(problem(0, trainer())).counts == {"a": 0}


def test_several_node_classes_are_refused_in_one_line_that_says_what_to_do(trainer) -> None:
    mixed = Problem((NodeSpec("n0", "a100"), NodeSpec("n1", "v100")), (trainer(),), 100.0)
    with pytest.raises(UnsupportedError, match=r"cannot carry several node classes: (use|solve) ") as caught:
        solve(mixed, "exact")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_one_named_class_is_one_class(trainer) -> None:
    assert solve(Problem((NodeSpec("n0", "a100"),), (trainer(),), 100.0)).counts == {"a": 1}


@pytest.mark.parametrize("seed", range(12))
def test_the_reduced_problem_has_the_optimum_of_the_full_dynamic_program(seed: int) -> None:
    problem = _random_problem(random.Random(seed), trainers=12, nodes=120, identical=seed % 3 == 0)
    tables = tabulate(problem)
    rows = np.arange(len(problem.trainers))
    reached = tables.value(rows, np.array(best_counts(problem))).sum()
    assert reached == pytest.approx(_full_dynamic_program(problem, tables), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("part_of_size", [1e-12, 0.001, 0.01, 0.1])
def test_exactly_the_counts_within_the_gap_survive(seed: int, part_of_size: float) -> None:
    problem = _random_problem(random.Random(seed), trainers=12, nodes=120, identical=seed % 3 == 0)
    tables = tabulate(problem)
    dual, gap = minimise(tables), part_of_size * tables.size
    expected = []
    for row, trainer in enumerate(problem.trainers):
        counts = np.array([n for n in range(len(problem.nodes) + 1) if trainer.allows(n)])
        scores = tables.value(np.full(len(counts), row), counts) - dual.multiplier * counts
        expected += [(row, count) for count in counts[scores.max() - scores <= gap].tolist()]
    found = survivors(tables, dual, gap)
    assert list(zip(found.rows.tolist(), found.counts.tolist(), strict=True)) == expected


def _random_problem(rng: random.Random, trainers: int, nodes: int, identical: bool) -> Problem:
    """Dented curves; every third problem is one curve for all, where bounds are loosest and ties commonest."""
    free = [f"n{i}" for i in range(nodes)]
    rng.shuffle(free)
    specs = []
    for index in range(trainers):
        points = sorted(rng.sample(range(1, 60), 5))
        curve = Curve((0, *points), (0.0, *(rng.uniform(0, 10) for _ in points)))
        if identical:
            curve = Curve((0, 7, 16, 40), (0.0, 1.0, 4.0, 20.0))
        low = 7 if identical else rng.randint(1, 20)
        held = 0 if identical else rng.randint(0, nodes // trainers)
        current, free = tuple(free[:held]), free[held:]
        specs.append(TrainerSpec(f"t{index}", low, low + 40, rng.uniform(0, 60), rng.uniform(0, 20), curve, current))
    return Problem(tuple(NodeSpec(f"n{i}") for i in range(nodes)), tuple(specs), 60.0)


def _full_dynamic_program(problem: Problem, tables) -> float:
    best = np.zeros(len(problem.nodes) + 1)
    for row, trainer in enumerate(problem.trainers):
        counts = np.array([n for n in range(len(problem.nodes) + 1) if trainer.allows(n)])
        values = tables.value(np.full(len(counts), row), counts)
        after = np.full(len(best), -np.inf)
        for count, value in zip(counts, values, strict=True):
            after[count:] = np.maximum(after[count:], best[: len(best) - count] + value)
        best = after
    return float(best.max())
