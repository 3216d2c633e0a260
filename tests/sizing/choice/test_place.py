"""Where plans go: the placement of Frenzy, corrected."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.choice.fit import GpuPlan
from sizing.choice.place import NotPlaceable, Placement, PlacementRequest, check, parse, place, trial
from sizing.inventory.gpus import GIB, recognise
from sizing.inventory.inventory import Inventory, PartitionOffer
from sizing.inventory.pools import pools
from sizing.inventory.shapes import GpuShape
from tests.sizing.placing import asks, feasible, group, inventories, inventory, of_offers, usable
from tests.support.messages import excerpt, fragment, pattern, says, wording

pytestmark = pytest.mark.slow

MANY = settings(max_examples=200, deadline=None)


def ask(gpus: int, gib: float = 10, **fields: Any) -> PlacementRequest:
    return PlacementRequest(gpus, int(gib * GIB), **fields)


def nodes_of(wanted: PlacementRequest, there: Inventory) -> dict[str, int] | None:
    found = place([wanted], there)
    return dict(found.nodes) if found else None


def why(wanted: PlacementRequest, there: Inventory) -> str:
    (answer,) = trial([wanted], there)
    assert isinstance(answer, NotPlaceable)
    return answer.why


@MANY
@given(asks(), inventories())
def test_every_plan_that_gpus_of_one_type_in_one_partition_can_hold_is_placed(
    wanted: PlacementRequest, there: Inventory
) -> None:
    assert (place([wanted], there) is not None) == feasible(wanted, there)


@MANY
@given(st.lists(asks(), min_size=1, max_size=4), inventories())
def test_no_placement_is_over_what_is_idle_mixes_types_or_cuts_a_tensor_parallel_group(
    wanted: list[PlacementRequest], there: Inventory
) -> None:
    found = place(wanted, there)
    if found is None:
        return
    chosen = wanted[found.index]
    assert chosen.partition in ("", found.partition)
    assert chosen.gpu_type in ("", found.gpu_type)
    assert there.types[found.gpu_type].memory_bytes >= chosen.need_bytes
    offer = next(offer for offer in there.offers if offer.partition == found.partition)
    assert offer.max_nodes is None or len(found.nodes) <= offer.max_nodes
    usable_gpus = {
        node: most
        for at in offer.groups
        if at.gpu_type == found.gpu_type
        for node, most in zip(at.idle, usable(chosen, at), strict=True)
    }
    assert sum(found.nodes.values()) == chosen.gpus
    for node, count in found.nodes.items():
        assert 0 < count <= usable_gpus[node]
        assert count % chosen.tp == 0


@MANY
@given(st.lists(asks(), min_size=1, max_size=4), inventories())
def test_the_same_question_has_the_same_answer_and_changes_nothing(
    wanted: list[PlacementRequest], there: Inventory
) -> None:
    before = copy.deepcopy((wanted, there))
    first = list(trial(wanted, there))
    assert (wanted, there) == before
    assert list(trial(wanted, there)) == first


@MANY
@given(asks(), inventories())
def test_a_plan_that_may_lie_anyhow_is_on_as_few_nodes_as_can_be(wanted: PlacementRequest, there: Inventory) -> None:
    free = PlacementRequest(wanted.gpus, wanted.need_bytes, wanted.tp, wanted.partition, wanted.gpu_type)
    found = place([free], there)
    if found is None:
        return
    offer = next(offer for offer in there.offers if offer.partition == found.partition)
    counts = sorted(
        (count for at in offer.groups if at.gpu_type == found.gpu_type for count in usable(free, at)), reverse=True
    )
    assert sum(counts[: len(found.nodes) - 1]) < free.gpus


def test_the_first_plan_that_can_be_placed_is_and_the_better_ones_say_why_not() -> None:
    there = inventory(group("t4", {"n1": 4, "n2": 4}))
    first, second, third = trial([ask(2, 30), ask(9), ask(8), ask(1)], there)
    assert first == NotPlaceable(0, "needs 30.0 GiB a GPU: 15.7 GiB more than t4 has")
    assert second == NotPlaceable(
        1, wording("sizing.place.too_few_now", gpus=9, there=16, where="t4 in gpu", idle=8, groups=""), 1
    )
    assert third == Placement(2, "gpu", "t4", "", {"n1": 4, "n2": 4})


def test_of_types_that_hold_a_plan_the_smallest_is_taken_whose_memory_is_just_enough_too() -> None:
    there = inventory(group("h200-sxm-141gb", {"h1": 8}), group("a100-sxm-40gb", {"a1": 8}), group("t4", {"t1": 8}))
    assert nodes_of(ask(4, 20), there) == {"a1": 4}
    exact = there.types["a100-sxm-40gb"].memory_bytes
    assert nodes_of(PlacementRequest(4, exact), there) == {"a1": 4}
    assert nodes_of(PlacementRequest(4, exact + 1), there) == {"h1": 4}


def test_of_nodes_that_fit_the_fullest_takes_a_plan() -> None:
    assert nodes_of(ask(3), inventory(group("t4", {"n1": 8, "n2": 3, "n3": 4}))) == {"n2": 3}


def test_without_one_that_fits_the_emptiest_give_all_and_the_rest_goes_where_it_fits_best() -> None:
    there = inventory(group("t4", {"n1": 2, "n2": 6, "n3": 3, "n4": 5}))
    assert nodes_of(ask(13), there) == {"n2": 6, "n4": 5, "n1": 2}


def test_types_are_never_mixed_nor_partitions_nor_two_names_of_one_type() -> None:
    assert nodes_of(ask(8), inventory(group("t4", {"n1": 4}), group("a100-sxm-40gb", {"n2": 4}))) is None
    apart = of_offers(PartitionOffer("a", (group("t4", {"n1": 4}),)), PartitionOffer("b", (group("t4", {"n2": 4}),)))
    assert nodes_of(ask(8), apart) is None
    named = inventory(group("t4", {"n1": 4}, gres_type="t4"), group("t4", {"n2": 4}, gres_type="tesla"))
    assert nodes_of(ask(8), named) is None
    alike = inventory(group("t4", {"n1": 4}), group("t4", {"n2": 4}, features=("ib",)))
    assert nodes_of(ask(8), alike) == {"n1": 4, "n2": 4}


def test_tensor_parallel_groups_stay_whole_on_a_node() -> None:
    there = inventory(group("t4", {"n1": 3, "n2": 3, "n3": 2}))
    assert nodes_of(ask(6, tp=2), there) == {"n1": 2, "n2": 2, "n3": 2}
    groups = wording("sizing.place.whole_groups", tp=2)
    assert why(ask(8, tp=2), there) == wording(
        "sizing.place.too_few_now", gpus=8, there=24, where="t4 in gpu", idle=6, groups=groups
    )
    assert why(ask(16, tp=16), there) == wording(
        "sizing.place.needs_gpus_of_one_node", tp=16, tp2=16, where="t4 in gpu", largest=8
    )


def test_a_node_without_cpus_or_memory_for_them_gives_no_gpus() -> None:
    # a GPU's share is 8 CPUs and 64 GiB
    there = inventory(group("t4", {"n1": 8}, idle_cpus={"n1": 17}, idle_memory_bytes={"n1": 200 * GIB}))
    assert nodes_of(ask(2), there) == {"n1": 2}
    assert nodes_of(ask(3), there) is None
    assert nodes_of(ask(3, cpus=5), there) == {"n1": 3}
    assert nodes_of(ask(4, cpus=4), there) is None
    assert nodes_of(ask(4, cpus=4, memory_bytes=50 * GIB), there) == {"n1": 4}


def test_a_plan_gets_the_gpus_of_each_node_that_its_lines_ask_for_where_it_can() -> None:
    there = inventory(group("t4", {"n1": 8, "n2": 5, "n3": 4}))
    assert nodes_of(ask(8, per_node=4), there) == {"n3": 4, "n2": 4}
    assert nodes_of(ask(8), there) == {"n1": 8}
    assert nodes_of(ask(15, per_node=5), there) == {"n1": 8, "n2": 5, "n3": 2}
    # three of each node would cut a group of two
    assert nodes_of(ask(6, tp=2, per_node=3), inventory(group("t4", {"n1": 4, "n2": 4}))) == {"n1": 4, "n2": 2}


def test_a_partition_bounds_the_nodes_of_a_job() -> None:
    there = inventory(group("t4", {"n1": 2, "n2": 2, "n3": 2}), max_nodes=2)
    assert nodes_of(ask(4), there) == {"n1": 2, "n2": 2}
    assert why(ask(6), there) == wording("sizing.place.too_few_nodes", chosen=3, where="t4 in gpu", most=2)
    assert nodes_of(ask(3, per_node=1), there) == {"n1": 2, "n2": 1}


def test_a_slice_trains_alone() -> None:
    known = recognise("a100_1g.5gb")
    assert known is not None
    there = Inventory({known.type.name: known.type}, (PartitionOffer("gpu", (group(known.type.name, {"n1": 7}, 7),)),))
    assert nodes_of(ask(1, 4), there) == {"n1": 1}
    assert says(why(ask(2, 4), there), "sizing.place.slices")


def test_a_plan_keeps_to_the_partition_and_type_that_it_names() -> None:
    there = of_offers(
        PartitionOffer("a", (group("t4", {"n1": 8}), group("h100-sxm-80gb", {"n2": 8}))),
        PartitionOffer("b", (group("t4", {"n3": 8}),)),
    )
    assert nodes_of(ask(1), there) == {"n1": 1}
    assert nodes_of(ask(1, partition="b"), there) == {"n3": 1}
    assert nodes_of(ask(1, gpu_type="h100-sxm-80gb"), there) == {"n2": 1}
    assert why(ask(1, partition="b", gpu_type="h100-sxm-80gb"), there) == (
        wording("sizing.place.no_gpus", where=" of type h100-sxm-80gb in partition b")
    )


def test_a_plan_of_bft_size_fit_is_placed_with_its_guard_band() -> None:
    peak = Estimate(13.0 * GIB, 13.0 * GIB, 15.0 * GIB, "traced")
    second = Estimate(1.0, 1.0, 1.0, "assumed")
    (pool,) = pools(inventory(group("t4", {"n1": 4, "n2": 4}, gpus=4)))
    plan = GpuPlan(GpuShape(pool, 2, 4), (Parallel(dp=4, tp=2),), 4, step_s=second, peak=peak, cost=second)
    (wanted,) = parse(json.dumps({"plans": [plan.to_json()]}))
    assert wanted == PlacementRequest(8, 15 * GIB, 2, "gpu", "t4", 4)
    assert place([wanted], inventory(group("t4", {"n1": 8}))) is None


@pytest.mark.parametrize(("gpus", "tp"), [(0, 1), (-1, 1), (4, 0), (4, 3)])
def test_sizes_that_cannot_be_are_refused(gpus: int, tp: int) -> None:
    with pytest.raises(UsageError, match="give whole groups"):
        PlacementRequest(gpus, 1, tp)


def test_a_partition_or_type_that_is_not_there_is_named_with_the_nearest() -> None:
    there = inventory(group("t4", {"n1": 8}))
    with pytest.raises(
        UsageError,
        match=pattern(
            "sizing.place.unknown",
            index=2,
            what="partition",
            name="gpus",
            hint=fragment(excerpt("sizing.fields.hint", near=fragment("gpu"))),
        ),
    ):
        check([ask(1), ask(1, partition="gpus")], there)
    with pytest.raises(
        UsageError, match=pattern("sizing.place.unknown", index=1, what="GPU", name="type h100", hint="there are t4")
    ):
        check([ask(1, gpu_type="h100")], there)
