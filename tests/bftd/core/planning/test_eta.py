"""When a trainer is expected to end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.core.inputs import clock_shift
from bftd.core.model.domain import State, Trainer
from bftd.core.planning import eta
from bftd.core.scaling.learning import ScalingModel
from bftd.core.scaling.pace import FORGET_S, Attendance, Pace
from bftd.protocol.registration import Registration
from bftd.protocol.reports import ProgressReport, SuspendReport
from bftd.protocol.sizes import Sizes
from tests.bftd.builders import Core, registration

NOW_S = 1_795_300_000.0
NEW = Attendance()
SPELLS = st.lists(st.tuples(st.floats(0.0, 1e6), st.booleans()), max_size=12)


def trainer(total: int | None, pace: Pace, attendance: Attendance = NEW, **rest: object) -> Trainer:
    request = Registration("7", "train.py", "torchrun", Sizes(1, 8))
    known = ScalingModel(seen=((2, 200.0), (8, 800.0)))
    item = Trainer(request, 0.0, known, state="running", total_steps=total, pace=pace, attendance=attendance)
    return replace(item, **rest)  # type: ignore[arg-type]


def attended(spells: list[tuple[float, bool]]) -> tuple[Attendance, float]:
    found, now_s = Attendance(), NOW_S
    for lasts_s, works in spells:
        found = found.seen(now_s, works=works)
        now_s += lasts_s
    return found, now_s


def test_it_ends_when_the_steps_that_are_left_are_done_at_its_pace() -> None:
    assert eta.expected_end_s(trainer(1000, Pace(400, 2.0, 4, 4)), NOW_S) == NOW_S + 300.0


def test_one_that_had_nodes_for_half_of_its_time_ends_in_twice_the_time() -> None:
    half, now_s = attended([(600.0, True), (600.0, False), (600.0, True), (600.0, False)])
    end_s = eta.expected_end_s(trainer(1000, Pace(400, 2.0, 4), half, state="suspended"), now_s)
    assert end_s is not None
    assert end_s - now_s == pytest.approx(600.0, rel=0.05)


def test_what_was_days_ago_says_nothing_of_its_share() -> None:
    late, now_s = attended([(1e6, False), (3600.0, True), (10 * FORGET_S, False), (10 * FORGET_S, True)])
    assert late.share(now_s) > 0.99


def test_the_time_before_its_first_nodes_counts_for_nothing() -> None:
    found, now_s = attended([(5000.0, False), (60.0, True)])
    assert found.share(now_s) == 1.0


def test_at_a_size_without_a_pace_yet_the_curve_says_how_much_faster_it_is() -> None:
    grown = Pace(400, 2.0, 2).with_report(400, 0.0, 8)
    assert eta.expected_end_s(trainer(1000, grown), NOW_S) == pytest.approx(NOW_S + 75.0)


def test_nothing_is_expected_where_steps_or_pace_are_not_known_or_that_has_ended() -> None:
    known = Pace(400, 2.0, 4, 4)
    assert eta.expected_end_s(trainer(None, known), NOW_S) is None
    assert eta.expected_end_s(trainer(1000, Pace()), NOW_S) is None
    assert eta.expected_end_s(trainer(1000, known, state="finished"), NOW_S) is None
    assert eta.expected_end_s(trainer(10**15, Pace(0, 1e-9, 1, 1)), NOW_S) is None
    assert eta.expected_end_s(trainer(1000, known), -math.inf) is None


def test_regression_a_trainer_beyond_the_steps_that_it_told_ended_now_for_hours() -> None:
    assert eta.expected_end_s(trainer(400, Pace(400, 2.0, 4, 4)), NOW_S) == NOW_S
    assert eta.expected_end_s(trainer(400, Pace(680, 2.0, 4, 4)), NOW_S) is None


def test_a_clock_that_is_set_changes_no_share() -> None:
    found, now_s = attended([(600.0, True), (300.0, False)])
    one = trainer(1000, Pace(400, 2.0, 4, 4), found)
    moved = clock_shift.moved(State(trainers={one.id: one}), -7200.0).trainers[one.id]
    assert moved.attendance.share(now_s - 7200.0) == pytest.approx(found.share(now_s))


@given(SPELLS, st.integers(1, 10**15), st.integers(0, 10**15), st.floats(0.0, 1e12), st.integers(0, 10**6))
def test_an_end_is_never_in_the_past_and_never_beyond_its_bound(
    spells: list[tuple[float, bool]], total: int, step: int, rate: float, nodes: int
) -> None:
    found, now_s = attended(spells)
    assert 0.0 <= found.share(now_s) <= 1.0
    end_s = eta.expected_end_s(trainer(total, Pace(step, rate, nodes, nodes // 2), found), now_s)
    assert end_s is None or now_s <= end_s <= now_s + eta.MOST_S


def test_a_trainer_is_followed_from_its_first_step_through_a_suspension() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.tick(500.0)
    core.pool("n1", "n2")
    core.place_all()
    told = ProgressReport(NOW_S, 100, 1000.0, 20.0, nodes=2, total_steps=700, steps_per_s=2.0, live_step=100)
    core.report("1", told)
    assert left_s(core) == 300.0, "the time before its first nodes counts for nothing"
    core.report("1", replace(told, live_step=300), after_s=100.0)
    assert left_s(core) == 200.0, "a step that is not saved yet is done all the same"
    core.report("1", SuspendReport(NOW_S, 200))
    assert left_s(core) == pytest.approx(250.0)
    core.tick(100.0)
    assert left_s(core) == pytest.approx(500.0, rel=0.01)


def left_s(core: Core) -> float:
    end_s = eta.expected_end_s(core.state.trainers["1"], core.time_s)
    assert end_s is not None
    return end_s - core.time_s
