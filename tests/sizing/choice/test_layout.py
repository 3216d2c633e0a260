"""The layouts that are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.choice.layout import Spread, layouts
from sizing.inventory.inventory import PartitionOffer
from sizing.inventory.pools import pools
from tests.sizing.plans_of import gpu, group, inventory


def tried(
    offer: PartitionOffer,
    batch: int,
    spread: Spread = Spread(),  # noqa: B008
    most: int | None = None,
) -> set[tuple[int, Parallel]]:
    return {(each.nodes, each.parallel) for each in layouts(pools(inventory(offer)), batch, spread, most)}


def test_a_step_that_takes_nothing_is_only_replicated() -> None:
    offer = PartitionOffer("gpu", (group(count=2, gpus=4),))
    assert tried(offer, 8) == {(1, Parallel(1)), (1, Parallel(2)), (1, Parallel(4)), (2, Parallel(8))}


def test_a_batch_that_cannot_be_cut_leaves_those_sizes_out() -> None:
    offer = PartitionOffer("gpu", (group(count=2, gpus=4),))
    assert tried(offer, 6) == {(1, Parallel(1)), (1, Parallel(2)), (1, Parallel(3))}
    assert tried(offer, 7) == {(1, Parallel(1))}


def test_tensor_parallelism_stays_in_a_node_and_divides_heads() -> None:
    offer = PartitionOffer("gpu", (group(count=2, gpus=6),))
    found = tried(offer, 12, Spread(tensor=True, heads=12))
    assert {parallel.tp for _, parallel in found} == {1, 2}, "4 does not divide a node's 6 GPUs"
    assert {
        parallel.tp for _, parallel in tried(PartitionOffer("gpu", (group(gpus=8),)), 8, Spread(tensor=True, heads=4))
    } == {
        1,
        2,
        4,
    }


def test_shards_may_be_of_all_gpus_or_of_each_node() -> None:
    offer = PartitionOffer("gpu", (group(count=2, gpus=2),))
    two_nodes = {parallel for nodes, parallel in tried(offer, 4, Spread(fsdp=True)) if nodes == 2}
    assert two_nodes == {Parallel(4), Parallel(1, 1, 4), Parallel(2, 1, 2)}


def test_the_partitions_nodes_and_the_users_gpus_are_bounds() -> None:
    offer = PartitionOffer("gpu", (group(count=8, gpus=4),), max_nodes=2)
    assert max(nodes for nodes, _ in tried(offer, 64)) == 2
    assert {parallel.gpus for _, parallel in tried(offer, 64, most=6)} == {1, 2, 4}


def test_a_slice_of_a_gpu_is_used_alone() -> None:
    there = inventory(PartitionOffer("mig", (group(kind="slice", gpus=7),)), types=[gpu("slice", 10, slice=True)])
    assert [each.parallel for each in layouts(pools(there), 7, Spread())] == [Parallel()]


@pytest.mark.parametrize(("batch", "most"), [(0, None), (-4, None), (4, 0), (4, -1)])
def test_sizes_below_one_are_refused(batch: int, most: int | None) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        layouts(pools(inventory(PartitionOffer("gpu", (group(),)))), batch, Spread(), most)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), min_size=1, max_size=3),
    st.integers(1, 96),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 20),
)
def test_what_is_tried_can_be_had_and_cuts_the_batch_into_whole_parts(
    shapes: list[tuple[int, int]], batch: int, tensor: bool, fsdp: bool, most: int | None
) -> None:
    groups = tuple(group(f"n{at}-", count, gpus=gpus) for at, (count, gpus) in enumerate(shapes))
    found = layouts(pools(inventory(PartitionOffer("gpu", groups, max_nodes=4))), batch, Spread(tensor, fsdp), most)
    assert any(each.parallel == Parallel() for each in found)
    for each in found:
        per_node, rest = divmod(each.parallel.gpus, each.nodes)
        assert not rest
        assert per_node % each.parallel.tp == 0
        assert each.nodes <= min(4, sum(len(one.nodes) for one in groups if one.gpus >= per_node))
        assert each.batch * each.parallel.shares == batch
        assert most is None or each.parallel.gpus <= most
    keys = [(each.nodes, each.parallel) for each in found]
    assert len(set(keys)) == len(keys)
