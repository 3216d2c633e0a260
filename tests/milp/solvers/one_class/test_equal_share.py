"""The paper's baseline heuristic."""

from __future__ import annotations

import pytest

from milp import Curve, solve

pytestmark = pytest.mark.slow


def test_the_baseline_may_be_worse_than_the_current_map(trainer, problem) -> None:
    good, poor = trainer("good", current=("n0", "n1", "n2")), trainer("poor", curve=Curve((0, 8), (0.0, 0.8)))
    assert solve(problem(4, poor, good), "equal-share").counts == {"poor": 2, "good": 2}


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
