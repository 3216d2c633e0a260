"""The sentence that a user reads for each way a decision can go."""

from __future__ import annotations

from milp import Curve, Problem, reasons
from milp.maps import assign


def explain(problem: Problem, counts: dict[str, int]) -> dict[str, str]:
    return reasons.explain(problem, assign(problem, counts))


def test_growing_names_gain_and_cost(trainer, problem) -> None:
    grows = problem(8, trainer(current=("n0", "n1")))
    assert explain(grows, {"a": 6})["a"] == (
        "grows from 2 to 6 nodes: gains 400 over the next 100 s for a rescale cost of 20"
    )


def test_starting_names_the_gain(trainer, problem) -> None:
    assert explain(problem(8, trainer()), {"a": 1})["a"] == (
        "starts on 1 node: gains 100 over the next 100 s for a rescale cost of 0"
    )


def test_growing_back_over_nodes_min_counts_the_current_nodes_as_idle(trainer, problem) -> None:
    cut = problem(8, trainer(nodes_min=3, current=("n0", "n1")))
    assert explain(cut, {"a": 4})["a"] == (
        "grows from 2 to 4 nodes: gains 400 over the next 100 s for a rescale cost of 0"
    )


def test_shrinking_for_others_names_the_loss(trainer, problem) -> None:
    shrinks = problem(8, trainer(current=("n0", "n1", "n2", "n3")))
    assert explain(shrinks, {"a": 1})["a"] == (
        "shrinks from 4 to 1 node: loses 300 over the next 100 s and 20 rescaling; other trainers gain more there"
    )
    assert explain(shrinks, {"a": 0})["a"].startswith("gives up its 4 nodes: loses 400 over")


def test_shrinking_because_the_current_size_is_not_allowed_says_which_rule(trainer, problem) -> None:
    three = ("n0", "n1", "n2")
    below = problem(8, trainer(nodes_min=4, current=three))
    assert "below its nodes_min of 4 it cannot train" in explain(below, {"a": 0})["a"]
    above = problem(8, trainer(nodes_max=2, current=three))
    assert explain(above, {"a": 2})["a"] == "shrinks from 3 to 2 nodes: its nodes_max is 2"
    between = problem(8, trainer(sizes=(2, 4), current=three))
    assert explain(between, {"a": 2})["a"] == "shrinks from 3 to 2 nodes: 3 is none of its sizes"


def test_shrinking_on_a_falling_curve_is_a_gain(trainer, problem) -> None:
    falls = problem(8, trainer(curve=Curve((0, 1, 4), (0.0, 5.0, 2.0)), current=("n0", "n1", "n2", "n3")))
    assert explain(falls, {"a": 1})["a"] == (
        "shrinks from 4 to 1 node: gains 300 over the next 100 s for a rescale cost of 10"
    )


def test_keeping_says_what_stands_in_the_way_of_growing(trainer, problem) -> None:
    held = ("n0", "n1")
    assert explain(problem(8, trainer(nodes_max=2, current=held)), {"a": 2})["a"] == (
        "keeps its 2 nodes: that is its largest size"
    )
    assert explain(problem(2, trainer(current=held)), {"a": 2})["a"] == (
        "keeps its 2 nodes: no node is free, and none is worth more here than where it is"
    )
    assert explain(problem(3, trainer(sizes=(2, 4), current=held)), {"a": 2})["a"] == (
        "keeps its 2 nodes: too few are free (1) for its next size"
    )
    assert explain(problem(8, trainer(current=held), t_fwd_s=1), {"a": 2})["a"] == (
        "keeps its 2 nodes: growing to 8 would gain only 6 over the next 1 s for a rescale cost of 20"
    )


def test_keeping_the_largest_listed_size_is_not_blamed_on_the_pool(trainer, problem) -> None:
    largest = problem(8, trainer(sizes=(1, 2), current=("n0", "n1")))
    assert explain(largest, {"a": 2})["a"] == "keeps its 2 nodes: that is its largest size"


def test_waiting_says_what_is_missing(trainer, problem) -> None:
    wants = trainer("wants", sizes=(4, 8))
    assert explain(problem(2, wants), {"wants": 0})["wants"] == "waits: it needs 4 nodes, the pool has 2"
    crowded = problem(5, trainer("a"), wants)
    assert explain(crowded, {"a": 4, "wants": 0})["wants"] == (
        "waits: it needs 4 nodes, the trainers that earn more with them leave 1"
    )
    idle = problem(2, trainer(curve=Curve((0,), (0.0,))))
    assert explain(idle, {"a": 0})["a"] == "waits: 1 node would gain 0 over the next 100 s"
