from __future__ import annotations

from milp.maps import assign


def test_growing_takes_the_most_preferred_free_nodes_and_keeps_all_that_is_held(trainer, problem) -> None:
    holds = trainer(current=("n5", "n2"))
    assert assign(problem(8, holds), {"a": 4}) == {"a": ("n5", "n2", "n0", "n1")}


def test_shrinking_gives_up_the_least_preferred_nodes(trainer, problem) -> None:
    holds = trainer(current=("n5", "n2", "n7", "n3"))
    assert assign(problem(8, holds), {"a": 2}) == {"a": ("n2", "n3")}


def test_nodes_given_up_serve_another_trainer_in_the_same_plan(trainer, problem) -> None:
    gives, takes = trainer("gives", current=("n0", "n1", "n2")), trainer("takes")
    assert assign(problem(3, gives, takes), {"gives": 1, "takes": 2}) == {"gives": ("n0",), "takes": ("n1", "n2")}


def test_earlier_trainers_choose_first(trainer, problem) -> None:
    assert assign(problem(4, trainer("b"), trainer("a")), {"a": 2, "b": 2}) == {"b": ("n0", "n1"), "a": ("n2", "n3")}


def test_an_unchanged_count_keeps_the_very_same_nodes(trainer, problem) -> None:
    assert assign(problem(4, trainer(current=("n3", "n1"))), {"a": 2}) == {"a": ("n3", "n1")}
