"""The sentence that a user reads for each way a decision can go."""

from __future__ import annotations

from milp import Curve, Problem, explanations
from milp.assignments import assign
from tests.support.messages import says, wording


def explain(problem: Problem, counts: dict[str, int]) -> dict[str, str]:
    return explanations.explain(problem, assign(problem, counts))


def test_growing_names_gain_and_cost(trainer, problem) -> None:
    grows = problem(8, trainer(current=("n0", "n1")))
    assert explain(grows, {"a": 6})["a"] == (
        wording("milp.reasons.grows", held=2, count="6 nodes: ")
        + wording("milp.reasons.gains", gain=400, horizon="over the next 100 s", count=20)
    )


def test_starting_names_the_gain(trainer, problem) -> None:
    assert explain(problem(8, trainer()), {"a": 1})["a"] == (
        "starts on 1 node: " + wording("milp.reasons.gains", gain=100, horizon="over the next 100 s", count=0)
    )


def test_growing_back_over_nodes_min_counts_the_current_nodes_as_idle(trainer, problem) -> None:
    cut = problem(8, trainer(nodes_min=3, current=("n0", "n1")))
    assert explain(cut, {"a": 4})["a"] == (
        wording("milp.reasons.grows", held=2, count="4 nodes: ")
        + wording("milp.reasons.gains", gain=400, horizon="over the next 100 s", count=0)
    )


def test_shrinking_for_others_names_the_loss(trainer, problem) -> None:
    shrinks = problem(8, trainer(current=("n0", "n1", "n2", "n3")))
    assert explain(shrinks, {"a": 1})["a"] == (
        wording(
            "milp.reasons.loses",
            verb=wording("milp.reasons.shrinks", held=4, count="1 node"),
            loss=300,
            horizon="over the next 100 s",
            cost=20,
            why="",
        )
        + wording("milp.reasons.others_gain_more")
    )
    assert explain(shrinks, {"a": 0})["a"].startswith(wording("milp.reasons.gives_up", held="4 nodes: loses 400 over"))


def test_shrinking_because_the_current_size_is_not_allowed_says_which_rule(trainer, problem) -> None:
    three = ("n0", "n1", "n2")
    below = problem(8, trainer(nodes_min=4, current=three))
    assert says(explain(below, {"a": 0})["a"], "milp.reasons.below_min", nodes_min=4)
    above = problem(8, trainer(nodes_max=2, current=three))
    assert explain(above, {"a": 2})["a"] == wording(
        "milp.reasons.above_max", verb=wording("milp.reasons.shrinks", held=3, count="2 nodes"), nodes_max=2
    )
    between = problem(8, trainer(sizes=(2, 4), current=three))
    assert explain(between, {"a": 2})["a"] == wording(
        "milp.reasons.none_of_its_sizes", verb=wording("milp.reasons.shrinks", held=3, count="2 nodes"), held=3
    )


def test_shrinking_on_a_falling_curve_is_a_gain(trainer, problem) -> None:
    falls = problem(8, trainer(curve=Curve((0, 1, 4), (0.0, 5.0, 2.0)), current=("n0", "n1", "n2", "n3")))
    assert explain(falls, {"a": 1})["a"] == (
        wording("milp.reasons.shrinks", held=4, count="1 node: ")
        + wording("milp.reasons.gains", gain=300, horizon="over the next 100 s", count=10)
    )


def test_keeping_says_what_stands_in_the_way_of_growing(trainer, problem) -> None:
    held = ("n0", "n1")
    assert explain(problem(8, trainer(nodes_max=2, current=held)), {"a": 2})["a"] == (
        wording("milp.reasons.largest_size", verb="keeps its 2 nodes")
    )
    assert explain(problem(2, trainer(current=held)), {"a": 2})["a"] == (
        "keeps its 2 nodes: " + wording("milp.reasons.none_worth_more")
    )
    assert explain(problem(3, trainer(sizes=(2, 4), current=held)), {"a": 2})["a"] == (
        "keeps its 2 nodes: " + wording("milp.reasons.too_few_free", free=1)
    )
    assert explain(problem(8, trainer(current=held), t_fwd_s=1), {"a": 2})["a"] == (
        wording(
            "milp.reasons.growing_would_gain",
            verb="keeps its 2 nodes",
            larger=8,
            gain_text="gain",
            horizon="only 6 over the next 1 s",
            cost=20,
        )
    )


def test_keeping_the_largest_listed_size_is_not_blamed_on_the_pool(trainer, problem) -> None:
    largest = problem(8, trainer(sizes=(1, 2), current=("n0", "n1")))
    assert explain(largest, {"a": 2})["a"] == wording("milp.reasons.largest_size", verb="keeps its 2 nodes")


def test_waiting_says_what_is_missing(trainer, problem) -> None:
    wants = trainer("wants", sizes=(4, 8))
    assert explain(problem(2, wants), {"wants": 0})["wants"] == wording(
        "milp.reasons.pool_too_small", smallest="4 nodes", where="pool", most=2
    )
    crowded = problem(5, trainer("a"), wants)
    assert explain(crowded, {"a": 4, "wants": 0})["wants"] == (
        wording("milp.reasons.waits", smallest="4 nodes", why="") + wording("milp.reasons.others_leave", free=1)
    )
    idle = problem(2, trainer(curve=Curve((0,), (0.0,))))
    assert explain(idle, {"a": 0})["a"] == wording(
        "milp.reasons.would_gain", smallest="1 node", smallest2=0, horizon="over the next 100 s"
    )
