"""The calendar of plans: what is free when."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.timeline import Timeline
from tests.bftd.pool.backfill.cases import nodes

ALL = nodes(0, 1, 2, 3)


def space(*plans: tuple[int, float, float]) -> Timeline:
    found = Timeline(0.0, ALL)
    for mask, begin, end in plans:
        found.take(mask, begin, end)
    return found


def test_a_plan_takes_its_nodes_until_just_before_its_end() -> None:
    found = space((nodes(0, 1), 60, 120))
    assert found.free(ALL, found.slots(0, 59)) == ALL
    assert found.free(ALL, found.slots(119, 130)) == nodes(2, 3)
    assert found.free(ALL, found.slots(120, 130)) == ALL


def test_a_time_is_looked_at_with_both_ends_included() -> None:
    found = space((nodes(0), 60, 120))
    assert found.free(ALL, found.slots(0, 60)) == nodes(1, 2, 3)


def test_a_plan_may_begin_where_another_ends_and_end_where_another_begins() -> None:
    found = space((nodes(0), 60, 120))
    assert found.leaves(nodes(0), 120, 180)
    assert found.leaves(nodes(0), 0, 60)
    assert not found.leaves(nodes(0), 119, 180)
    assert not found.leaves(nodes(0), 0, 61)


def test_the_next_look_is_where_a_node_becomes_free_that_matters() -> None:
    found = space((nodes(0), 0, 60), (nodes(1), 0, 120))
    assert found.grown(-1, found.slots(0, 600)) == 60
    assert found.grown(nodes(1), found.slots(0, 600)) == 120
    assert found.grown(nodes(2), found.slots(0, 600)) is None
    assert found.grown(-1, found.slots(60, 600)) == 120


def test_where_plans_follow_each_other_on_the_same_nodes_nothing_becomes_free() -> None:
    found = space((nodes(0), 60, 120), (nodes(0), 120, 180))
    assert found.grown(-1, found.slots(60, 600)) == 180


def test_the_next_look_is_sought_one_slot_behind_the_time_and_no_further() -> None:
    found = space((nodes(0), 100, 400), (nodes(1), 200, 300))
    assert found.grown(-1, found.slots(0, 150)) == 300
    assert found.grown(-1, found.slots(0, 50)) is None


def test_a_plan_without_end_takes_its_nodes_for_ever() -> None:
    found = space((nodes(0), 60, inf))
    assert found.free(ALL, found.slots(1e12, inf)) == nodes(1, 2, 3)
    assert found.grown(-1, found.slots(0, inf)) is None


def test_it_is_known_until_when_nodes_are_free() -> None:
    found = space((nodes(0), 60, 120), (nodes(1), 600, 700))
    assert [found.until(nodes(one), 1000) for one in range(3)] == [60, 600, 1000]
    assert found.until(nodes(1), 600) == 600


def test_plans_before_the_beginning_and_plans_that_end_before_they_begin_take_nothing() -> None:
    found = space((ALL, -100, 0), (ALL, 50, 40), (ALL, -100, -50), (0, 0, 60))
    assert found.free(ALL, found.slots(0, inf)) == ALL


times = st.integers(0, 20).map(lambda at: 10.0 * at)


@given(st.lists(st.tuples(st.integers(0, ALL), times, times), max_size=8), times, times)
def test_free_is_what_no_plan_has_at_any_moment(plans: list[tuple[int, float, float]], one: float, two: float) -> None:
    found = space(*plans)
    begin, end = sorted((one, two))
    taken = 0
    for mask, first, last in plans:
        if first <= end and last > begin and first < last:
            taken |= mask
    assert found.free(ALL, found.slots(begin, end)) == ALL & ~taken
    assert found.free(ALL, found.slots(begin, end)) & ~found.sample(found.slots(begin, end)) == 0
    for index, grown in enumerate(found.grows[:-1]):
        assert grown == found.masks[index + 1] & ~found.masks[index]
    assert found.begins == sorted(set(found.begins))
