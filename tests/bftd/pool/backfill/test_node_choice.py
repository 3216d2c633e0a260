"""Which nodes a job gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.node_choice import NodeNeed, Preference, for_earmark, for_plan, leaver
from bftd.pool.victims import AnyNode
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


def earmark(free: int, count: int, *wishes: Preference, contiguous: bool = False, required: int = 0) -> int:
    leave = leaver(AnyNode().chooser({}), 0)
    return for_earmark(free, NodeNeed(count, required, contiguous), EVERY, wishes, leave)


def test_wishes_are_met_in_their_order() -> None:
    wishes = [Preference(nodes(5)), Preference(nodes(1, 2))]
    assert earmark(nodes(0, 1, 2, 5), 1, *wishes) == nodes(5)
    assert earmark(nodes(0, 1, 2, 5), 3, *wishes) == nodes(1, 2, 5)
    assert earmark(nodes(0, 1, 2, 5), 4, *wishes) == nodes(0, 1, 2, 5)


def test_neighbours_with_most_wished_nodes_are_taken() -> None:
    free = nodes(*range(10))
    assert earmark(free, 3, Preference(nodes(6, 8)), contiguous=True) == nodes(6, 7, 8)
    assert earmark(free, 2, Preference(nodes(6, 8)), Preference(nodes(9)), contiguous=True) == nodes(8, 9)


class Dear:
    """A core to which some nodes are worth more, and that notes what it was asked."""

    def __init__(self, *answer: int) -> None:
        self.answer = nodes(*answer)
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, mask: int, count: int, already: int) -> int:
        self.asked.append((mask, count, already))
        return self.answer


def test_of_leased_nodes_the_core_says_which() -> None:
    core = Dear(3, 1)
    leave = leaver(core, nodes(4))
    chosen = for_earmark(nodes(0, 1, 2, 3), NodeNeed(2), EVERY, [Preference(nodes(0, 1, 2, 3), leased=True)], leave)
    assert chosen == nodes(1, 3)
    assert core.asked == [(nodes(0, 1, 2, 3), 2, nodes(4))]


def test_the_core_is_not_asked_where_all_leased_nodes_are_needed() -> None:
    core = Dear()
    leave = leaver(core, 0)
    assert for_earmark(nodes(0, 1), NodeNeed(2), EVERY, [Preference(nodes(0, 1), leased=True)], leave) == nodes(0, 1)
    assert core.asked == []


@pytest.mark.parametrize("answer", [(), (9,), (4,), (0,), (0, 1, 2, 3)])
def test_an_answer_of_the_core_that_makes_no_sense_is_put_right(answer: tuple[int, ...]) -> None:
    leave = leaver(Dear(*answer), 0)
    chosen = for_earmark(nodes(0, 1, 2, 3), NodeNeed(2), EVERY, [Preference(nodes(0, 1, 2, 3), leased=True)], leave)
    assert chosen.bit_count() == 2
    assert chosen & ~nodes(0, 1, 2, 3) == 0


@given(st.integers(1, (1 << 14) - 1), st.data())
def test_neighbours_are_found_as_if_looked_for_one_by_one(free: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, free.bit_count()))
    plain = reference.best_fit(reference.members(free, 14), count)
    assert reference.members(for_plan(free, NodeNeed(count), EVERY), 14) == plain


MASKS = st.integers(0, (1 << 14) - 1)


@given(MASKS, st.integers(1, 6), st.lists(MASKS, max_size=4))
def test_the_best_place_for_neighbours_is_found_as_if_looked_for_one_by_one(
    free: int, count: int, wishes: list[int]
) -> None:
    need = NodeNeed(count, contiguous=True)
    if not need.met(free):
        return
    chosen = for_earmark(free, need, EVERY, map(Preference, wishes), leaver(AnyNode().chooser({}), 0))
    places = [first for first in range(15 - count) if all(free >> first + more & 1 for more in range(count))]

    def good(first: int) -> list[int]:
        return [-sum(wish >> first + more & 1 for more in range(count)) for wish in wishes]

    best = min(places, key=good)
    assert chosen == nodes(*range(best, best + count))
