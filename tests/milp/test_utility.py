"""Equations (11)-(16), term by term, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from milp import Curve, NodeSpec, Problem, TrainerSpec
from milp.curves import slowest
from milp.utility import (
    idle_worth,
    most_worth,
    objective,
    objective_of,
    outcome,
    pieces,
    relative_gap,
    rescale_cost,
)
from tests.milp.instances import one_class_problems, optimum, problems

HELD = ("n0", "n1", "n2")


def test_a_curve_is_linear_between_its_points_and_constant_beyond_the_last() -> None:
    curve = Curve((0, 2, 6), (0.0, 3.0, 5.0))
    assert [curve(n) for n in (0, 1, 2, 3, 5, 6, 7, 1000)] == [0, 1.5, 3, 3.5, 4.5, 5, 5, 5]


def cost(trainer: TrainerSpec, count: int) -> float:
    return rescale_cost(pool_for(trainer), trainer, count)


def pool_for(trainer: TrainerSpec) -> Problem:
    return Problem(tuple(NodeSpec(f"n{i}") for i in range(8)), (trainer,), 100.0)


def test_a_rescale_costs_the_current_rate_for_the_seconds_of_its_direction(trainer) -> None:
    holds = trainer(current=HELD)
    assert cost(holds, 4) == 3.0 * 10
    assert cost(holds, 3) == 0
    assert cost(holds, 2) == 3.0 * 5
    assert cost(holds, 0) == 3.0 * 5


def test_a_trainer_below_nodes_min_has_no_rate_to_lose(trainer) -> None:
    assert cost(trainer(nodes_min=4, current=HELD), 8) == 0
    assert cost(trainer(nodes_min=3, current=HELD), 8) == 30


def test_starting_from_nothing_costs_nothing(trainer) -> None:
    assert cost(trainer(), 8) == 0


def test_weight_multiplies_both_the_outcome_and_the_cost(trainer) -> None:
    heavy = trainer(current=HELD, weight=2.0)
    assert outcome(pool_for(heavy), heavy, 4) == 800
    assert cost(heavy, 4) == 60


def two_classes(**changes: Any) -> Problem:
    """Two slow nodes, two fast ones (twice the rate) and a trainer on one of each."""
    curves = {"fast": Curve((0, 4), (0.0, 8.0))}
    fields = {"nodes_min": 1, "nodes_max": 4, "up_cost_s": 10.0, "down_cost_s": 5.0, "curve": Curve((0, 4), (0.0, 4.0))}
    spec = TrainerSpec("a", **{**fields, "class_curves": curves, "current": ("s0", "f0"), **changes})
    nodes = tuple(NodeSpec(name, "slow" if name[0] == "s" else "fast") for name in ("s0", "s1", "f0", "f1"))
    return Problem(nodes, (spec,), 100.0)


def test_a_trainer_on_several_classes_runs_at_the_rate_of_the_slowest() -> None:
    mixed = two_classes(mixes_classes=True)
    assert mixed.earns_now == {"a": 2.0}
    assert objective_of(mixed, {"a": ("s0", "f0", "f1")}) == 100 * 3 - 2 * 10
    assert objective_of(mixed, {"a": ("f0",)}) == 100 * 2 - 2 * 5
    assert objective_of(mixed, {"a": ("s0", "f0")}) == 100 * 2


def test_each_class_has_its_own_curve() -> None:
    idle = two_classes(current=())
    assert objective_of(idle, {"a": ("s0", "s1")}) == 200
    assert objective_of(idle, {"a": ("f0", "f1")}) == 400


def test_the_slowest_of_two_curves_that_cross_between_whole_numbers_is_right_at_every_whole_number() -> None:
    one, other = Curve((0, 10), (0.0, 10.0)), Curve((0, 1, 10), (0.0, 4.0, 6.0))
    low = slowest([one, other])
    assert [low(n) for n in range(13)] == pytest.approx([min(one(n), other(n)) for n in range(13)])


def test_the_objective_adds_outcomes_and_subtracts_costs(trainer, problem) -> None:
    both = problem(8, trainer("a", current=HELD), trainer("b", current=("n3", "n4")), t_fwd_s=100)
    # a grows 3 -> 6: 600 - 30; b shrinks 2 -> 1: 100 - 10.
    assert objective(both, {"a": 6, "b": 1}) == 660


@pytest.mark.parametrize(("value", "bound", "gap"), [(90, 100, 0.1), (100, 100, 0), (0, 0, 0), (-100, -50, 0.5)])
def test_the_gap_is_relative_to_the_larger_of_value_and_bound(value: float, bound: float, gap: float) -> None:
    assert relative_gap(value, bound) == pytest.approx(gap)


def described(problem: Problem) -> list[tuple[str, int, int, int]]:
    found = pieces(problem, problem.trainers[0])
    return [("".join(sorted(p.classes)), p.change, p.low, p.high) for p in found]


def test_pieces_end_at_the_curves_points_and_at_the_current_count(trainer, problem) -> None:
    bent = trainer(nodes_min=2, curve=Curve((0, 4, 8), (0.0, 4.0, 5.0)), current=("n0", "n1", "n2", "n3", "n4"))
    assert described(problem(8, bent)) == [("", -1, 2, 4), ("", 0, 5, 5), ("", 1, 6, 8)]


def test_only_listed_sizes_are_pieces(trainer, problem) -> None:
    assert described(problem(8, trainer(sizes=(1, 4, 16)))) == [("", 1, 1, 1), ("", 1, 4, 4)]


@pytest.mark.parametrize(
    ("current", "found"),
    [
        ((), [("a", 1, 1, 3), ("b", 1, 1, 2)]),
        (("a0", "a1"), [("a", -1, 1, 1), ("a", 0, 2, 2), ("a", 1, 3, 3)]),
        (("a0", "a1", "b0"), [("a", -1, 1, 2), ("b", -1, 1, 1)]),
    ],
)
def test_a_trainer_starts_on_any_class_and_then_stays_on_it(trainer, current, found) -> None:
    nodes = tuple(NodeSpec(name, name[0]) for name in ("a0", "a1", "a2", "b0", "b1"))
    assert described(Problem(nodes, (trainer(current=current),), 100.0)) == found


def test_a_mixing_trainer_grows_onto_other_classes_but_leaves_none_while_it_grows(trainer) -> None:
    nodes = tuple(NodeSpec(name, name[0]) for name in ("a0", "a1", "b0", "b1"))
    mixing = trainer(current=("a0",), mixes_classes=True, class_curves={"b": Curve((0, 8), (0.0, 16.0))})
    # On both classes it runs at the rate of a, so that choice says all about a; b alone would be a migration.
    assert described(Problem(nodes, (mixing,), 100.0)) == [("ab", 0, 1, 1), ("ab", 1, 2, 4)]


@settings(max_examples=200, deadline=None)
@given(one_class_problems())
def test_every_allowed_count_is_in_a_piece_that_says_its_worth(problem: Problem) -> None:
    for trainer in problem.trainers:
        worth = {0: idle_worth(problem, trainer)}
        for piece in pieces(problem, trainer):
            for count in range(piece.low, piece.high + 1):
                worth[count] = piece.worth_low + piece.slope * (count - piece.low)
        assert sorted(worth) == [n for n in range(len(problem.nodes) + 1) if trainer.allows(n)]
        for count, value in worth.items():
            assert value == pytest.approx(outcome(problem, trainer, count) - rescale_cost(problem, trainer, count))


@settings(max_examples=100, deadline=None)
@given(problems())
def test_what_each_could_earn_alone_bounds_the_optimum(problem: Problem) -> None:
    bound = sum(most_worth(problem, trainer) for trainer in problem.trainers)
    assert bound >= optimum(problem) - 1e-6


def test_giving_up_costs_the_stall_of_a_shrink(trainer, problem) -> None:
    held = problem(4, trainer(current=("n0", "n1")))
    assert idle_worth(held, held.trainers[0]) == -10 == objective(held, {"a": 0})
