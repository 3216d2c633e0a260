"""What a trainer may do next: ranges of counts, straight pieces, and their worth in equation (16)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from milp import Curve, NodeSpec, Problem
from milp.worth import idle_worth, most_worth, objective, outcome, pieces, rescale_cost
from tests.milp.instances import one_class_problems, optimum, problems


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
