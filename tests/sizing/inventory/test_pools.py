"""Which GPUs a job can tell apart."""

from __future__ import annotations

from sizing.inventory.inventory import PartitionOffer
from sizing.inventory.pools import pools
from sizing.inventory.shapes import GpuShape
from tests.sizing.plans_of import GIB, gpu, group, inventory

SMALL = gpu("a100-40", 40)


def test_two_models_that_slurm_calls_the_same_are_kept_apart_by_a_feature() -> None:
    offer = PartitionOffer(
        "gpu",
        (
            group("b", kind="a100", gres_type="a100", features=("ib", "a100_80")),
            group("s", kind="a100-40", gres_type="a100", features=("ib", "a100_40", "cheap")),
        ),
    )
    large, small = pools(inventory(offer, types=[SMALL]))
    assert (large.constraint, large.gpu_bytes) == ("a100_80", 80 * GIB)
    assert (small.constraint, small.gpu_bytes) == ("cheap", 40 * GIB)


def test_where_no_feature_does_the_smaller_memory_counts() -> None:
    offer = PartitionOffer("gpu", (group("b"), group("s", kind="a100-40", gres_type="a100")))
    large, small = pools(inventory(offer, types=[SMALL]))
    assert (large.constraint, large.mixed, large.gpu_bytes) == ("", ("a100-40",), 40 * GIB)
    assert small.gpu_bytes == 40 * GIB


def test_gpus_without_a_type_may_be_any_of_the_partition() -> None:
    offer = PartitionOffer("gpu", (group("b", gres_type=""), group("v", kind="v100")))
    nameless, named = pools(inventory(offer))
    assert nameless.gpu_bytes == 32 * GIB
    assert (named.constraint, named.mixed) == ("", ()), "a job that names v100 gets v100"


def test_other_partitions_and_unknown_types_change_nothing() -> None:
    offers = (
        PartitionOffer("one", (group(),)),
        PartitionOffer("two", (group(kind="a100-40", gres_type="a100"), group(kind="odd"))),
    )
    assert [(pool.partition, pool.mixed) for pool in pools(inventory(*offers, types=[SMALL]))] == [
        ("one", ()),
        ("two", ()),
    ]


def test_a_job_has_no_more_nodes_than_its_partition_allows() -> None:
    pool = next(
        iter(pools(inventory(PartitionOffer("gpu", (group(count=6), group("h", count=2, gpus=8)), max_nodes=3))))
    )
    assert (pool.nodes(4), pool.nodes(8), pool.nodes(9)) == (3, 2, 0)


def test_in_an_exclusive_partition_a_job_pays_for_whole_nodes() -> None:
    shared, whole = pools(inventory(PartitionOffer("a", (group(),)), PartitionOffer("b", (group(),), exclusive=True)))
    assert [GpuShape(*each).paid for each in ((shared, 1, 2), (whole, 1, 2), (whole, 2, 4))] == [2, 4, 8]
