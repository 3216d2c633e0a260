"""The solver as the replay hands it to the core."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings

import milp
from bftd.simulation.replay.planner import charging_starts, step_bound
from milp import NodeSpec, Problem, TrainerSpec
from milp.utility import objective
from tests.milp.instances import one_class_problems

pytestmark = pytest.mark.slow


def _best_within(problem: Problem, most: int) -> float:
    """The best objective of counts that change by no more than `most`, tried one by one."""
    choices = []
    for trainer in problem.trainers:
        held = len(trainer.current)
        choices.append([n for n in range(len(problem.nodes) + 1) if trainer.allows(n) and abs(n - held) <= most])
    found = [
        objective(problem, dict(zip((t.name for t in problem.trainers), counts, strict=True)))
        for counts in itertools.product(*choices)
        if sum(counts) <= len(problem.nodes)
    ]
    return max(found, default=float("nan"))


@given(problem=one_class_problems(max_trainers=3))
@settings(deadline=None, max_examples=150)
def test_the_step_bound_gives_the_best_plan_that_the_papers_big_m_allows(problem: Problem) -> None:
    # As in a replay, nobody holds more than it may have.
    assume(all(len(t.current) <= t.nodes_max and t.allows(len(t.current)) for t in problem.trainers))
    most = (len(problem.nodes) + 1) // 2
    expected = _best_within(problem, most)
    plan = step_bound(problem, "exact", time_limit_s=None, gap=0.0)
    milp.verify(problem, plan)
    assert abs(plan.objective - expected) <= 1e-6 * max(1.0, abs(expected))
    for trainer in problem.trainers:
        assert abs(plan.counts[trainer.name] - len(trainer.current)) <= most


def test_a_trainer_of_no_weight_cannot_stop_either_where_the_papers_big_m_is_too_small() -> None:
    flat, steep = milp.Curve((0, 4), (0.0, 4.0)), milp.Curve((0, 4), (0.0, 400.0))
    holder = TrainerSpec("a", 2, 4, 0.0, 0.0, flat, current=("n1", "n2", "n3"), weight=0.0)
    other = TrainerSpec("b", 1, 4, 0.0, 0.0, steep, current=("n4",))
    nodes = tuple(NodeSpec(f"n{number}") for number in range(1, 5))
    plan = step_bound(Problem(nodes, (holder, other), 120.0), "exact", time_limit_s=None, gap=0.0)
    assert plan.counts == {"a": 2, "b": 2}  # M = 5 lets nobody change by more than two nodes


@given(problem=one_class_problems())
@settings(deadline=None, max_examples=50)
def test_only_starts_from_nothing_are_charged_and_never_so_much_that_idling_is_better(problem: Problem) -> None:
    charged = charging_starts(problem)
    for before, after in zip(problem.trainers, charged.trainers, strict=True):
        if len(before.current) >= before.nodes_min or not before.up_cost_s:
            assert after is before
        else:
            expected = before.weight * problem.t_fwd_s / (problem.t_fwd_s + before.up_cost_s)
            assert abs(after.weight - expected) <= 1e-12 * expected
