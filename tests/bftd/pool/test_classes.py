"""Classes of nodes: alike nodes are of one class, others are not, and names can be read."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.pool.classes import Classified, classify
from slurm_plugin.read.types import Node
from tests.bftd.builders import Pool, node

GIB = 2**30


def a_node(name: str, gpus: dict[str, int] | None = None, **fields: Any) -> Node:
    gpus = gpus or {}
    plain = {"cpus": 64, "memory_bytes": 251 * GIB, "gpus": gpus, "gres": ",".join(map(str, gpus.items()))}
    return node(name, **{**plain, **fields})


def of(*nodes: Node, features: tuple[str, ...] = (), partitions: tuple[str, ...] = ("elastic",)) -> Classified:
    return classify({item.name: item for item in nodes}, features, partitions)


def test_a_class_is_named_by_its_gpus_and_without_any_by_cpus_and_memory() -> None:
    found = of(
        a_node("n1", {"a100": 4}),
        a_node("n2", {"v100": 2}),
        a_node("n3"),
        a_node("n4", {"": 8}),
        a_node("n5", {"a100": 1, "v100": 1}),
        a_node("n6", memory_bytes=900 * 2**20),
        a_node("n7", {"a100": 0}),
    )
    assert found.of_node == {
        "n1": "a100x4",
        "n2": "v100x2",
        "n3": "cpu64-251G",
        "n4": "gpux8",
        "n5": "a100x1+v100x1",
        "n6": "cpu64-900M",
        "n7": "cpu64-251G",
    }
    assert dict(found.classes["a100x4"].gpus) == {"a100": 4}


def test_cpus_and_memory_tell_gpu_nodes_apart_only_where_they_differ() -> None:
    alike = of(a_node("n1", {"a100": 4}), a_node("n2", {"a100": 4}, memory_bytes=257_601 * 2**20))
    assert set(alike.of_node.values()) == {"a100x4"}
    other = of(
        a_node("n1", {"a100": 4}),
        a_node("n2", {"a100": 4}, memory_bytes=503 * GIB),
        a_node("n3", {"a100": 4}, cpus=96),
    )
    assert other.of_node == {"n1": "a100x4-cpu64-251G", "n2": "a100x4-cpu64-503G", "n3": "a100x4-cpu96-251G"}


@settings(deadline=None)
@given(st.lists(st.integers(250_000, 274_000), min_size=1, max_size=20))
def test_memory_that_differs_by_less_than_a_tenth_makes_no_class_wherever_it_lies(megabytes: list[int]) -> None:
    found = of(*(a_node(f"n{at}", memory_bytes=size * 2**20) for at, size in enumerate(megabytes)))
    assert len(found.classes) == 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_classes_are_those_of_the_nodes_in_whatever_order_they_come(megabytes: list[int], rng: Any) -> None:
    nodes = [a_node(f"n{at}", memory_bytes=size * 2**20) for at, size in enumerate(megabytes)]
    first = of(*nodes)
    rng.shuffle(nodes)
    again = of(*nodes)
    assert (again.of_node, again.classes) == (first.of_node, first.classes)
    assert sum(kind.size for kind in first.classes.values()) == len(nodes)


def test_only_features_that_the_site_names_make_classes_and_a_class_has_what_all_its_nodes_have() -> None:
    nodes = [a_node("n1", {"a100": 4}, features=("ib", "rack1")), a_node("n2", {"a100": 4}, features=("ib", "rack2"))]
    (kind,) = of(*nodes).classes.values()
    assert (kind.name, kind.features, kind.some_features) == ("a100x4", {"ib"}, {"rack1", "rack2"})
    assert of(*nodes, features=("rack1",)).of_node == {"n1": "a100x4+rack1", "n2": "a100x4"}


def test_alike_nodes_of_two_harvested_partitions_are_of_two_classes() -> None:
    nodes = [
        a_node("n1", {"a100": 4}, partitions=("batch", "elastic")),
        a_node("n2", {"a100": 4}, partitions=("batch", "elastic", "late")),
        a_node("n3", partitions=("late",)),
    ]
    found = of(*nodes, partitions=("elastic", "late"))
    assert found.of_node == {"n1": "a100x4-elastic", "n2": "a100x4-elastic+late", "n3": "cpu64-251G"}
    assert found.classes["a100x4-elastic+late"].partitions == ("elastic", "late")
    assert set(of(*nodes).of_node.values()) == {"a100x4", "cpu64-251G"}, "where one is harvested, others do not matter"


def test_nodes_that_are_as_before_are_not_sorted_again() -> None:
    nodes = {name: a_node(name, {"a100": 4}) for name in ("n1", "n2")}
    before = classify(nodes, (), ("elastic",))
    busy = {name: a_node(name, {"a100": 4}, state="ALLOCATED") for name in nodes}
    assert classify(busy, (), ("elastic",), before) is before
    assert classify(busy, ("ib",), ("elastic",), before) is not before


def test_a_node_that_becomes_one_of_another_class_makes_a_new_version_of_the_pool() -> None:
    pool = Pool(PoolConfig(debounce_polls=1))
    first = pool.see([a_node("n1", {"a100": 4})])
    second = pool.see([a_node("n1", {"a100": 3})])
    assert (first.nodes["n1"].node_class, second.nodes["n1"].node_class) == ("a100x4", "a100x3")
    assert second.version > first.version
    assert list(second.classes) == ["a100x3"]
