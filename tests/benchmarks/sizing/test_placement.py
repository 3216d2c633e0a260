"""The comparison of placements: it finds what is wrong, and ours has none of it."""

from __future__ import annotations

import pytest

from benchmarks.sizing import placement
from sizing.choice.place import PlacementRequest
from sizing.inventory.gpus import CATALOGUE, GIB
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from tests.support.messages import wording

pytestmark = pytest.mark.slow


def there(**idle_by_type: dict[str, int]) -> Inventory:
    groups = [
        GpuNodes(tuple(idle), kind.replace("_", "-"), 8, 64, 2**39, idle=idle) for kind, idle in idle_by_type.items()
    ]
    types = {group.gpu_type: CATALOGUE[group.gpu_type] for group in groups}
    return Inventory(types, (PartitionOffer("gpu", tuple(groups)),))


def test_ours_places_every_feasible_instance_and_the_printed_one_does_not() -> None:
    seen = placement.compare(400, seed=2)
    assert seen["placed"] == seen["feasible"] > 200
    assert seen["wrong"] == {}
    assert sum(seen["printed_on_feasible"].values()) == seen["feasible"]
    assert {"empty list", "endless loop", "placed"} <= seen["printed_on_feasible"].keys()
    assert seen == placement.compare(400, seed=2)
    rows = placement.table({"placements": seen, "time": placement.timed(5, 3, 1)}).splitlines()[2:]
    assert sum(int(row.split("|")[3].replace(",", "")) for row in (rows[0], *rows[2:-2])) == seen["feasible"]


def test_the_algorithm_as_printed_passes_over_the_best_fit_and_mixes_types() -> None:
    alone = there(t4={"n1": 8})
    assert placement.as_printed([PlacementRequest(4, 10 * GIB)], alone)[0] == "empty list"
    # the best fit is left out, so what it counted on is not there
    both = there(t4={"n1": 8}, a100_sxm_40gb={"n2": 2})
    assert placement.as_printed([PlacementRequest(4, 10 * GIB)], both)[0] == "endless loop"
    three = there(t4={"n1": 1}, a100_sxm_40gb={"n2": 2}, h100_sxm_80gb={"n3": 3})
    end, ask, given = placement.as_printed([PlacementRequest(9, GIB), PlacementRequest(5, 10 * GIB)], three)
    assert (end, given) == ("placed", {"n3": 3, "n2": 2})
    assert ask is not None
    assert placement.faults(ask, given, three) == {"several types"}
    assert placement.as_printed([PlacementRequest(9, GIB)], three)[0] == "no plan"


def test_every_fault_of_a_placement_is_seen() -> None:
    cluster = there(t4={"n1": 3, "n2": 8}, a100_sxm_40gb={"n3": 8})
    assert placement.faults(PlacementRequest(6, 10 * GIB, 2), {"n1": 2, "n2": 4}, cluster) == set()
    assert placement.faults(PlacementRequest(6, 20 * GIB, 2), {"n1": 5, "n3": 2}, cluster) == {
        "over capacity",
        "several types",
        "too little memory",
        "cut tensor-parallel groups",
        wording("benchmarks.sizing_placement.other_gpus"),
    }
