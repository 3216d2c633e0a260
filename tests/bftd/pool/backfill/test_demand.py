"""How many nodes a job needs, and which would do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.demand import Demand, demand
from bftd.pool.backfill.model import Component
from slurm_plugin.read.types import JobRequest, Node
from tests.bftd.pool.backfill.queues import GB, both, layout, mask, nodes

FOUR = nodes(4)
BATCH = mask(0, 1, 2, 3)


def asked(some: dict[str, Node] = FOUR, count: int = 1, **fields: Any) -> Demand | None:
    return demand(layout(some), "batch", JobRequest(**fields), count)


def part(some: dict[str, Node] = FOUR, count: int = 1, **fields: Any) -> Component:
    """The one part of a job that can be placed."""
    found = asked(some, count, **fields)
    assert found is not None
    (only,) = found.parts
    return only


def test_a_plain_job_needs_so_many_of_the_nodes_of_its_partition() -> None:
    other = both(nodes(2), nodes(2, partitions=("other",)))
    assert part(count=3) == Component(BATCH, 3, within=BATCH)
    assert part(other, 2) == Component(mask(0, 1), 2, within=mask(0, 1))


def test_excluded_nodes_and_those_without_its_features_do_not_do() -> None:
    some = both(nodes(2, features=("a",)), nodes(2))
    assert part(some, excluded=("n0", "n3", "who")).allowed == mask(1, 2)
    assert part(some, features="a").allowed == mask(0, 1)
    assert part(some, features="a").within == BATCH


def test_required_nodes_are_named_and_counted() -> None:
    assert part(required=("n1", "n3")).required == mask(1, 3)
    assert part(required=("n1", "n3")).need == 2
    assert part(count=3, required=("n1",)).need == 3


def test_neighbours_are_asked_for_as_they_are() -> None:
    assert part(count=2, contiguous=True).contiguous
    assert not part(count=2).contiguous


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (5, {}),
        (10**9, {}),
        (1, {"cpus": 17}),
        (1, {"cpus": 10**9}),
        (1, {"cpus_per_node": 5}),
        (1, {"memory_bytes": 17 * GB}),
        (1, {"gres": "gpu:1"}),
        (1, {"features": "nobody-has-it"}),
        (1, {"features": "[x|y]"}),
        (1, {"features": "[x*1&y*1]"}),
        (1, {"required": ("who",)}),
        (1, {"required": ("n1",), "excluded": ("n1",)}),
        (4, {"excluded": ("n1",)}),
        (1, {"required": ("n0", "n1", "n2", "n3"), "features": "x"}),
    ],
)
def test_what_can_never_be_is_none(count: int, fields: dict[str, Any]) -> None:
    assert asked(FOUR, count, **fields) is None


def test_a_partition_that_no_node_is_in_can_do_nothing() -> None:
    assert demand(layout(FOUR), "who", JobRequest(), 1) is None


def test_nodes_with_too_few_cpus_too_little_memory_or_too_few_gpus_do_not_do() -> None:
    small, large = nodes(2), nodes(2, cpus=64, memory_bytes=256 * GB, gres="gpu:a100:4", gpus={"a100": 4})
    some = both(small, large)
    assert part(some, cpus_per_node=5).allowed == mask(2, 3)
    assert part(some, cpus_per_node=4).allowed == BATCH
    assert part(some, memory_bytes=16 * GB).allowed == BATCH
    assert part(some, memory_bytes=16 * GB + 1).allowed == mask(2, 3)
    assert part(some, memory_bytes=8 * GB, memory_per_cpu=True, cpus_per_node=3).allowed == mask(2, 3)
    assert part(some, gres="gpu:4").allowed == mask(2, 3)
    assert part(some, gres="gres:gpu:a100:2").allowed == mask(2, 3)
    assert part(some, gres="gpu").allowed == mask(2, 3)
    assert asked(some, gres="gpu:5") is None
    assert asked(some, gres="gpu:h100:1") is None
    assert part(some, gres="licence:4,nvme:1").allowed == BATCH


def test_a_job_that_asks_for_cpus_only_needs_as_many_nodes_as_have_them() -> None:
    assert part(cpus=4).need == 1
    assert part(cpus=5).need == 2
    assert part(cpus=16).need == 4
    assert part(count=3, cpus=5).need == 3


def test_of_nodes_of_two_sizes_only_those_do_that_make_up_the_cpus_with_so_few() -> None:
    some = both(nodes(3), nodes(2, cpus=10))
    assert part(some, cpus=7) == Component(mask(3, 4), 1, within=mask(0, 1, 2, 3, 4))
    assert part(some, cpus=14).need == 2
    assert part(some, cpus=14).allowed == mask(0, 1, 2, 3, 4)
    assert part(some, cpus=15).allowed == mask(3, 4)
    assert part(some, cpus=24).need == 3


def test_what_a_job_shares_of_a_node_is_its_part_of_the_cpus() -> None:
    found = asked(FOUR, 2, cpus=6, memory_bytes=2 * GB, memory_per_cpu=True, gres="gpu:0")
    assert found is not None
    assert (found.asks.cpus, found.asks.memory_bytes, found.asks.gpus) == (3, 6 * GB, ())


def test_as_many_jobs_fit_on_one_node_as_on_the_smallest() -> None:
    some = both(nodes(2, cpus=8), nodes(2, cpus=64, memory_bytes=64 * GB))

    def together(**fields: Any) -> int:
        found = asked(some, **fields)
        assert found is not None
        return found.together

    assert together(cpus=2) == 4
    assert together(cpus=2, memory_bytes=8 * GB) == 2
    assert together(cpus=16) == 4
    assert together(cpus=5) == 1
    gpus = nodes(2, cpus=8, gres="gpu:4", gpus={"": 4})
    assert (shared := asked(gpus, cpus=1, gres="gpu:2")) is not None
    assert shared.together == 2


def test_a_job_whose_nodes_must_all_have_the_same_may_have_only_what_is_large_enough() -> None:
    some = both(nodes(3, features=("a",)), nodes(2, features=("b",)), nodes(1))
    assert part(some, 2, features="[a|b]") == Component(
        mask(0, 1, 2, 3, 4), 2, either=(mask(0, 1, 2), mask(3, 4)), within=mask(0, 1, 2, 3, 4, 5)
    )
    assert part(some, 3, features="[a|b]") == Component(mask(0, 1, 2), 3, within=mask(0, 1, 2, 3, 4, 5))
    assert part(some, 1, features="[a|b]", required=("n3",)).allowed == mask(3, 4)
    assert asked(some, 4, features="[a|b]") is None


def test_counted_features_are_parts_of_their_own_those_with_least_choice_first() -> None:
    some = both(nodes(4, features=("a",)), nodes(2, features=("b",)), nodes(2))
    every = mask(*range(8))
    found = asked(some, 7, features="[a*3&b*2]", required=("n0", "n6"))
    assert found is not None
    assert found.parts == (
        Component(mask(4, 5), 2, within=every),
        Component(mask(0, 1, 2, 3), 3, mask(0), within=every),
        Component(every, 2, mask(6), within=every),
    )
    assert asked(some, 1, features="[a*5&b*2]") is None
    assert asked(some, 5, features="[a*3&b*2]", required=("n7",)) is None


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    cpus=st.integers(0, 40),
    count=st.integers(0, 7),
)
def test_fewer_nodes_than_it_needs_never_have_the_cpus_and_some_that_do_always_have(
    sizes: list[int], cpus: int, count: int
) -> None:
    some = both(*(nodes(1, cpus=size) for size in sizes))
    found = asked(some, count, cpus=cpus)
    largest_first = sorted(sizes, reverse=True)
    if found is None:
        assert sum(sizes) < cpus or count > len(sizes)
        return
    (only,) = found.parts
    assert sum(largest_first[: only.need]) >= cpus
    assert only.need in (1, count) or sum(largest_first[: only.need - 1]) < cpus
    for index, size in enumerate(sizes):
        others = sorted((other for place, other in enumerate(sizes) if place != index), reverse=True)
        does = size + sum(others[: only.need - 1]) >= cpus
        assert not does or only.allowed >> index & 1


@given(
    request=st.builds(
        JobRequest,
        features=st.text(alphabet="ab&|[]*2()", max_size=12),
        required=st.lists(st.sampled_from(["n0", "n3", "who"]), max_size=2).map(tuple),
        excluded=st.lists(st.sampled_from(["n0", "n3", "who"]), max_size=2).map(tuple),
        cpus=st.integers(-5, 10**12),
        cpus_per_node=st.integers(-5, 99),
        memory_bytes=st.integers(-5, 10**15),
        memory_per_cpu=st.booleans(),
        gres=st.text(alphabet="gpures:/,a1(2)", max_size=20),
    ),
    count=st.integers(-3, 9),
)
def test_no_request_raises_and_what_a_part_needs_is_there(request: JobRequest, count: int) -> None:
    some = both(nodes(3, features=("a",)), nodes(3, features=("a", "b"), gpus={"a1": 2}))
    found = demand(layout(some), "batch", request, count)
    for one in found.parts if found else ():
        assert one.need >= 1
        assert one.allowed.bit_count() >= one.need >= one.required.bit_count()
        assert not one.required & ~one.allowed
        assert not one.allowed & ~one.within
        assert all(either.bit_count() >= one.need and not either & ~one.allowed for either in one.either)
