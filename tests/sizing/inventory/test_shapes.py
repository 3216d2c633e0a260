"""The GPUs of a pool that a job may have together, and those of them that a cell may have."""

from __future__ import annotations

import pytest

from sizing.base.errors import UsageError
from sizing.inventory.inventory import PartitionOffer
from sizing.inventory.pools import pools
from sizing.inventory.shapes import shapes
from tests.sizing.choice.cells_of import pool
from tests.sizing.plans_of import gpu, group, inventory


@pytest.mark.parametrize(
    ("gpus", "count", "most", "expected"),
    [
        (4, 2, None, [(1, 1), (1, 2), (1, 4), (2, 4)]),
        (6, 5, None, [(1, 1), (1, 2), (1, 4), (2, 4), (4, 4)]),
        (8, 1, 4, [(1, 1), (1, 2), (1, 4)]),
        (3, 4, None, [(1, 1), (1, 2), (2, 2), (4, 2)]),
    ],
)
def test_shapes_of_cells_are_powers_of_two_on_as_few_nodes_as_hold_them(
    gpus: int, count: int, most: int | None, expected: list[tuple[int, int]]
) -> None:
    found = shapes(pool(gpus=gpus, count=count), most, cells=True)
    assert [(each.nodes, each.per_node) for each in found] == expected


def test_a_job_has_any_part_of_a_node_or_whole_nodes_or_one_slice() -> None:
    odd, mig = pools(
        inventory(
            PartitionOffer("odd", (group("t", 2, gpus=3), group("s", 3, gpus=6))),
            PartitionOffer("mig", (group("m", 2, kind="slice", gpus=7),)),
            types=[gpu("slice", 10, slice=True)],
        )
    )
    parts = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)]
    several = [(2, 3), (3, 3), (2, 6), (4, 3), (5, 3), (3, 6)]
    assert [(each.nodes, each.per_node) for each in shapes(odd)] == parts + several
    assert [(each.nodes, each.per_node) for each in shapes(odd, 7)] == [*parts, (2, 3)]
    cells = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2)]
    assert [(each.nodes, each.per_node) for each in shapes(odd, cells=True)] == cells
    assert [(each.nodes, each.per_node) for each in shapes(odd, 7, cells=True)] == cells[:4]
    for for_cells in (False, True):
        assert [(each.nodes, each.per_node) for each in shapes(mig, cells=for_cells)] == [(1, 1)]


def test_at_most_no_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        list(shapes(pool(), 0))
