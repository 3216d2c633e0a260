"""When pilots leave before their limits: in parts, and none too late."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.timing import BEAT_S, EXPIRE_APART_S
from elastic.driver.timers import PilotLimits, TrainingPilot

pytestmark = pytest.mark.slow

HOUR_S = 3600.0


def leaves(members: list[TrainingPilot], begin_s: float = 0.0, nodes_min: int = 1) -> list[tuple[float, list[float]]]:
    """When which ends leave, nobody coming in their place."""
    limits = PilotLimits(lambda nodes: nodes >= nodes_min)
    left, now_s = list(members), begin_s
    told = []
    while left:
        if due := limits.due(left, now_s):
            told.append((now_s, [left[position].end_s for position in due]))
            left = [member for position, member in enumerate(left) if position not in due]
        now_s += BEAT_S
    return told


def test_regression_a_trainer_lost_all_pilots_that_were_granted_together_at_once() -> None:
    told = leaves([TrainingPilot(HOUR_S, HOUR_S)] * 8, HOUR_S - 200)
    assert [len(ends) for _, ends in told] == [2, 3, 2, 1]
    assert told[-1][0] == HOUR_S
    assert all(later - before >= EXPIRE_APART_S for (before, _), (later, _) in pairwise(told))


def test_pilots_that_end_apart_all_stay_to_their_own_end() -> None:
    ends = [HOUR_S + 300 * number for number in range(6)]
    assert leaves([TrainingPilot(end_s, HOUR_S) for end_s in ends], HOUR_S - 200) == [
        (end_s, [end_s]) for end_s in ends
    ]


def test_a_single_pilot_stays_to_its_end() -> None:
    assert leaves([TrainingPilot(HOUR_S, HOUR_S)], HOUR_S - 200) == [(HOUR_S, [HOUR_S])]


def test_a_trainer_that_needs_all_its_nodes_is_suspended_once_and_not_for_each_of_them() -> None:
    told = leaves([TrainingPilot(HOUR_S, HOUR_S)] * 4, HOUR_S - 200, nodes_min=4)
    assert told == [(HOUR_S, [HOUR_S] * 4)]


def test_pilots_of_a_minute_are_not_ended_when_they_have_hardly_begun() -> None:
    [first, *_] = leaves([TrainingPilot(60.0, 60.0)] * 8)
    assert first[0] >= 60.0 * 3 / 4


@given(
    st.lists(st.tuples(st.integers(2000, 2300), st.sampled_from([60.0, 600.0, 3600.0])), min_size=2, max_size=40),
)
def test_nobody_leaves_late_or_much_too_early_and_never_all_at_once(spread: list[tuple[int, float]]) -> None:
    members = [TrainingPilot(float(end_s), limit_s) for end_s, limit_s in spread]
    told = leaves(members, 1500.0)
    assert sorted(end_s for _, ends in told for end_s in ends) == sorted(member.end_s for member in members)
    for now_s, ends in told:
        for end_s in ends:
            assert now_s - BEAT_S < end_s <= now_s + 3 * EXPIRE_APART_S
    assert len(told) >= 2
    assert len(told[0][1]) < len(members)
