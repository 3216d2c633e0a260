"""Equations (11)-(16), term by term, worked out by hand."""

from __future__ import annotations

import pytest

from milp import Curve
from milp.objective import objective, outcome, relative_gap, rescale_cost

HELD = ("n0", "n1", "n2")


def test_a_curve_is_linear_between_its_points_and_constant_beyond_the_last() -> None:
    curve = Curve((0, 2, 6), (0.0, 3.0, 5.0))
    assert [curve(n) for n in (0, 1, 2, 3, 5, 6, 7, 1000)] == [0, 1.5, 3, 3.5, 4.5, 5, 5, 5]


def test_a_rescale_costs_the_current_rate_for_the_seconds_of_its_direction(trainer) -> None:
    holds = trainer(current=HELD)
    assert rescale_cost(holds, 4) == 3.0 * 10
    assert rescale_cost(holds, 3) == 0
    assert rescale_cost(holds, 2) == 3.0 * 5
    assert rescale_cost(holds, 0) == 3.0 * 5


def test_a_trainer_below_nodes_min_has_no_rate_to_lose(trainer) -> None:
    assert rescale_cost(trainer(nodes_min=4, current=HELD), 8) == 0
    assert rescale_cost(trainer(nodes_min=3, current=HELD), 8) == 30


def test_starting_from_nothing_costs_nothing(trainer) -> None:
    assert rescale_cost(trainer(), 8) == 0


def test_weight_multiplies_both_the_outcome_and_the_cost(trainer) -> None:
    heavy = trainer(current=HELD, weight=2.0)
    assert outcome(heavy, 4, 100) == 800
    assert rescale_cost(heavy, 4) == 60


def test_the_objective_adds_outcomes_and_subtracts_costs(trainer, problem) -> None:
    both = problem(8, trainer("a", current=HELD), trainer("b", current=("n3", "n4")), t_fwd_s=100)
    # a grows 3 -> 6: 600 - 30; b shrinks 2 -> 1: 100 - 10.
    assert objective(both, {"a": 6, "b": 1}) == 660


@pytest.mark.parametrize(("value", "bound", "gap"), [(90, 100, 0.1), (100, 100, 0), (0, 0, 0), (-100, -50, 0.5)])
def test_the_gap_is_relative_to_the_larger_of_value_and_bound(value: float, bound: float, gap: float) -> None:
    assert relative_gap(value, bound) == pytest.approx(gap)
