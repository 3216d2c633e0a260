"""Blocks of the pool, nodes for counts, and the map that stays."""

from __future__ import annotations

from dataclasses import replace

from milp import Cap, Curve, NodeGroup, NodeSpec, Problem
from milp.assignments import assign, keep


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


def test_a_trainer_keeps_its_most_preferred_nodes_as_far_as_its_sizes_allow(trainer, problem) -> None:
    held = ("n3", "n0", "n2")
    assert keep(problem(4, trainer(current=held))) == {"a": held}
    assert keep(problem(4, trainer(nodes_max=2, current=held))) == {"a": ("n0", "n2")}
    assert keep(problem(4, trainer(sizes=(1, 4), current=held))) == {"a": ("n0",)}
    assert keep(problem(4, trainer(nodes_min=4, current=held))) == {"a": ()}


def test_a_cap_is_used_up_by_the_trainers_that_came_first(trainer, problem) -> None:
    hers = [trainer(name, user="ann", current=nodes) for name, nodes in (("a", ("n0", "n1")), ("b", ("n2", "n3")))]
    assert keep(replace(problem(4, *hers), caps=(Cap(3, user="ann"),))) == {"a": ("n0", "n1"), "b": ("n2",)}
    assert keep(replace(problem(4, *hers), caps=(Cap(3, user="bob"),))) == {"a": ("n0", "n1"), "b": ("n2", "n3")}


def test_of_several_classes_the_part_that_earns_most_is_kept(trainer) -> None:
    nodes = (NodeSpec("s0", "slow"), NodeSpec("s1", "slow"), NodeSpec("f0", "fast"))
    spec = trainer(current=("s0", "s1", "f0"), class_curves={"fast": Curve((0, 8), (0.0, 80.0))})
    assert keep(Problem(nodes, (spec,), 100.0)) == {"a": ("f0",)}
    assert keep(Problem(nodes, (replace(spec, mixes_classes=True),), 100.0)) == {"a": ("s0", "s1", "f0")}


def test_part_of_a_group_is_given_up_and_a_whole_one_kept_as_a_whole(trainer, problem) -> None:
    grouped = replace(problem(6, trainer(current=("n0", "n1", "n2"))), groups=(NodeGroup("leaf", ("n0", "n1", "n3")),))
    assert keep(grouped) == {"a": ("n2",)}
    whole = trainer(current=("n0", "n1", "n3", "n2"))
    assert keep(replace(grouped, trainers=(whole,))) == {"a": ("n0", "n1", "n3", "n2")}
    # Of 3 + 1 nodes at most 3 may stay: the whole group, or without it the one loose node.
    assert keep(replace(grouped, trainers=(replace(whole, nodes_max=3),))) == {"a": ("n0", "n1", "n3")}
    assert keep(replace(grouped, trainers=(replace(whole, nodes_max=2),))) == {"a": ("n2",)}
