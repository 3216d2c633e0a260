"""Equation (16) for arrays is equation (16) for numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from milp import Problem
from milp.solvers.one_class.utility_arrays import Worth
from milp.utility import most_earned, worth
from tests.milp.instances import one_class_problems

pytestmark = pytest.mark.slow


@settings(max_examples=300, deadline=None)
@given(one_class_problems())
def test_the_worth_of_every_count_is_the_same_as_an_array_and_one_by_one(problem: Problem) -> None:
    assume(problem.trainers)
    value = Worth(problem)
    counts = np.arange(len(problem.nodes) + 1)
    for row, trainer in enumerate(problem.trainers):
        expected = [worth(problem, trainer, count, trainer.curve) for count in counts.tolist()]
        assert value(np.full(len(counts), row), counts) == pytest.approx(expected, rel=1e-12, abs=1e-9)
    assert value.most_earned() == pytest.approx(most_earned(problem), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(one_class_problems())
def test_a_floor_cuts_off_what_is_worse_and_a_tie_break_is_per_node_that_changes_hands(problem: Problem) -> None:
    assume(problem.trainers)
    value, plain = Worth(problem), Worth(problem)
    value.floor, value.tie_break = np.full(len(problem.trainers), -3.0), 0.25
    counts = np.arange(len(problem.nodes) + 1)
    for row, trainer in enumerate(problem.trainers):
        rows = np.full(len(counts), row)
        changed = np.abs(counts - len(trainer.current))
        assert value(rows, counts) == pytest.approx(np.maximum(plain(rows, counts), -3.0) - 0.25 * changed)
