"""The pilots of one trainer end in groups, where it can go on without one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.core.model.domain import Settings
from bftd.core.model.staggered_limits import StaggeredLimits
from tests.bftd.builders import NOW_S, Core, registration

HOUR = Settings().changed(pilot_limit_s=3600.0, submit_rate_per_min=1000)
NODES = tuple(f"n{number}" for number in range(1, 17))


@given(
    st.lists(st.floats(0, 7200)),
    st.floats(60, 86_400),
    st.integers(1, 60),
)
def test_each_pilot_lasts_whole_minutes_and_at_least_three_quarters_of_the_longest_limit(
    ends_s: list[float], longest_s: float, count: int
) -> None:
    ends = StaggeredLimits(ends_s, 0.0, longest_s)
    for _ in range(count):
        length_s = ends.length_s()
        assert length_s % 60 == 0
        assert 60 <= length_s <= longest_s
        # to the whole minute
        assert length_s > 0.75 * longest_s - 60
        ends.add(length_s)


@given(st.integers(2, 200), st.floats(600, 86_400))
def test_of_pilots_that_are_granted_together_never_much_more_than_a_quarter_end_together(
    count: int, longest_s: float
) -> None:
    ends, lengths = StaggeredLimits((), 0.0, longest_s), []
    for _ in range(count):
        lengths.append(ends.length_s())
        ends.add(lengths[-1])
    # below a quarter of an hour the groups are less than two minutes apart, and some are of the same minute
    groups = 4 if longest_s >= 960 else 2
    assert max(Counter(lengths).values()) <= -(-count // groups) + 1


def test_the_first_pilot_gets_all_of_the_longest_limit() -> None:
    assert StaggeredLimits((), NOW_S, 3600.0).length_s() == 3600.0


def test_a_pilot_that_comes_later_keeps_away_from_those_that_are_there() -> None:
    assert StaggeredLimits([NOW_S + 3600.0], NOW_S, 3600.0).length_s() == 3360.0
    # half an hour ago, at the longest limit: it ends long before
    assert StaggeredLimits([NOW_S + 1800.0], NOW_S, 3600.0).length_s() == 3600.0


def test_regression_all_pilots_of_a_trainer_ended_at_once_each_hour() -> None:
    core = Core(HOUR)
    core.arrive(registration("1", nodes_max=16))
    core.pool(*NODES)
    limits = Counter(lease.limit_s for lease in core.leases("1"))
    assert limits == {3600.0: 4, 3360.0: 4, 3120.0: 4, 2880.0: 4}


def test_a_trainer_that_needs_all_of_its_nodes_is_suspended_once_an_hour_and_not_once_a_group() -> None:
    core = Core(HOUR)
    core.arrive(registration("1", nodes_min=16, nodes_max=16))
    core.pool(*NODES)
    assert {lease.limit_s for lease in core.leases("1")} == {3600.0}


@pytest.mark.parametrize("window_s", [3599.0, 1200.0, 60.0])
def test_where_the_window_says_when_a_pilot_ends_it_is_not_ended_sooner(window_s: float) -> None:
    core = Core(HOUR)
    core.arrive(registration("1", nodes_max=16))
    core.pool(*NODES, windows=dict.fromkeys(NODES, window_s))
    assert {lease.limit_s for lease in core.leases("1")} == {window_s // 60 * 60}


def test_trainers_do_not_mind_when_the_pilots_of_others_end() -> None:
    core = Core(HOUR)
    for name in ("1", "2"):
        core.arrive(registration(name, nodes_min=1, nodes_max=2))
    core.pool(*NODES[:4])
    for name in ("1", "2"):
        assert sorted(lease.limit_s for lease in core.leases(name)) == [3360.0, 3600.0]
