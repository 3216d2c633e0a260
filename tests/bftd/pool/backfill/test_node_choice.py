"""Which nodes a job gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from tests.bftd.pool.backfill import reference
from tests.bftd.pool.backfill.cases import nodes

EVERY = [(1 << 64) - 1]


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (nodes(0, 1, 2, 5, 6, 9), 2, nodes(5, 6)),
        (nodes(0, 1, 2, 5, 6, 7, 8), 2, nodes(0, 1)),
        (nodes(0, 1, 3, 4, 6), 1, nodes(6)),
        (nodes(0, 2, 3, 4, 6, 7), 5, nodes(2, 3, 4, 6, 7)),
        (nodes(0, 2, 3, 4, 6, 7), 4, nodes(0, 2, 3, 4)),
        (nodes(0, 2, 4, 6), 3, nodes(0, 2, 4)),
    ],
)
def test_the_smallest_run_that_suffices_is_taken_or_else_the_largest(free: int, count: int, chosen: int) -> None:
    assert for_plan(free, NodeNeed(count), EVERY) == chosen


@pytest.mark.parametrize(("count", "older", "newer"), [(1, nodes(7), nodes(0)), (2, nodes(4, 5), nodes(4, 5))])
def test_since_26_05_a_job_of_one_node_gets_the_first_and_others_neighbours(count: int, older: int, newer: int) -> None:
    free, need = nodes(0, 1, 2, 4, 5, 7), NodeNeed(count)
    assert for_plan(free, need, EVERY) == older
    assert for_plan(free, need, EVERY, one_by_order=True) == newer


def test_since_26_05_weight_and_required_nodes_still_come_before_the_order() -> None:
    assert for_plan(nodes(0, 1, 2), NodeNeed(1), [nodes(2), nodes(0, 1)], one_by_order=True) == nodes(2)
    assert for_plan(nodes(0, 1, 2), NodeNeed(1, required=nodes(1)), EVERY, one_by_order=True) == nodes(1)
    assert for_plan(nodes(0, 1, 2), NodeNeed(1), EVERY, first=nodes(1), one_by_order=True) == nodes(1)


def test_nodes_of_less_weight_come_first() -> None:
    assert for_plan(nodes(0, 1, 2, 3), NodeNeed(2), [nodes(3), nodes(0, 1, 2)]) == nodes(0, 3)


def test_nodes_of_unknown_weight_come_last() -> None:
    assert for_plan(nodes(0, 1, 2), NodeNeed(2), [nodes(2)]) == nodes(0, 2)
    assert for_plan(nodes(0, 1, 2), NodeNeed(2), []) == nodes(0, 1)


def test_required_nodes_are_among_the_chosen() -> None:
    assert for_plan(nodes(0, 1, 2, 3, 7), NodeNeed(2, required=nodes(7)), EVERY) & nodes(7)


def test_neighbours_hold_all_required_nodes() -> None:
    need = NodeNeed(3, required=nodes(4), contiguous=True)
    assert for_plan(nodes(0, 1, 2, 4, 5, 6), need, EVERY) == nodes(4, 5, 6)
    assert not need.met(nodes(0, 1, 2, 4, 5))
    assert not need.met(nodes(0, 1, 2))
    assert NodeNeed(2, contiguous=True).met(nodes(0, 1))
    assert not NodeNeed(2, contiguous=True).met(nodes(0, 2))


def test_neighbours_are_planned_in_the_smallest_run_or_from_the_first_required_node_upwards() -> None:
    # the first run that was long enough was taken, and the plans behind it were others than Slurm's
    free = nodes(0, 1, 2, 3, 6, 7, 8)
    assert for_plan(free, NodeNeed(2, contiguous=True), EVERY) == nodes(6, 7)
    assert for_plan(free, NodeNeed(2, nodes(1), contiguous=True), EVERY) == nodes(1, 2)
    assert for_plan(free, NodeNeed(3, nodes(2), contiguous=True), EVERY) == nodes(1, 2, 3)


def test_nodes_in_use_that_a_job_fits_on_come_first() -> None:
    free = nodes(0, 1, 2, 5, 6)
    assert for_plan(free, NodeNeed(1), EVERY, first=nodes(2, 6)) == nodes(2)
    assert for_plan(free, NodeNeed(3), EVERY, first=nodes(2)) == nodes(0, 1, 2)
    assert for_plan(free, NodeNeed(2, contiguous=True), EVERY, first=nodes(1, 2)) == nodes(1, 2)
    assert for_plan(free, NodeNeed(2, contiguous=True), EVERY, first=nodes(0, 2)) == nodes(5, 6)


@given(st.integers(1, (1 << 14) - 1), st.data())
def test_neighbours_are_found_as_if_looked_for_one_by_one(free: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, free.bit_count()))
    plain = reference.best_fit(reference.members(free, 14), count)
    assert reference.members(for_plan(free, NodeNeed(count), EVERY), 14) == plain
