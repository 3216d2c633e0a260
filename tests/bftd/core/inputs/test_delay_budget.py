"""What a site promises its regular jobs: a budget of delay, and nothing new is lent once it is spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base.health import judged
from bftd.core.inputs import clock_shift, delay_budget
from bftd.core.model.delays import HOUR_S, Delays, TouchedStart
from bftd.core.model.domain import Happened, Settings
from bftd.ledger import codec
from bftd.service import status
from bftd.service.metrics import gauges
from tests.bftd.builders import NOW_S, Core, granted, of, registration
from tests.support.messages import says, wording


def late(delay_s: float | None, job: str = "9") -> TouchedStart:
    """A start that pilots delayed."""
    return TouchedStart(job, ("n1",), NOW_S, None if delay_s is None else NOW_S + delay_s)


def promising(budget_s: float = 60.0) -> Core:
    core = Core(Settings().changed(delay_s_per_hour=budget_s))
    core.arrive(registration("1", nodes_max=4))
    core.pool("n1")
    core.place_all()
    return core


def test_once_the_budget_is_spent_nothing_new_is_lent_and_what_is_lent_stays() -> None:
    core = promising()
    assert granted(core.pool("n1", "n2", touched=[late(61.0)])), "60 s count, and are the budget"
    core.place_all()
    assert granted(core.pool("n1", "n2", "n3", touched=[late(2.0)])) == []
    assert core.state.pool.hold == wording("core.sentences.delayed", counted_s=61, budget_s=60)
    assert core.nodes("1") == {"n1", "n2"}
    assert says(" ".join(core.sentences()), "core.sentences.delayed", counted_s=61, budget_s=60)


def test_it_goes_on_by_itself_once_the_last_hour_has_less() -> None:
    core = promising()
    core.pool("n1", touched=[late(100.0)])
    began_s = core.time_s
    while not (new := granted(core.pool("n1", "n2", after_s=5.0))):
        assert core.time_s - began_s < 2 * HOUR_S
    assert {item.node for item in new} == {"n2"}
    assert core.time_s - began_s >= HOUR_S


def test_without_a_budget_delays_are_kept_and_nothing_stops() -> None:
    core = promising(budget_s=0.0)
    assert granted(core.pool("n1", "n2", touched=[late(1e6)]))
    assert (core.state.delays.starts, core.state.delays.total_s) == (1, 1e6)
    assert not delay_budget.alarms(core.state, core.time_s)
    assert status.overview(core.state, core.time_s, "", "live", (), ())["delays"]["budget_s"] is None


def test_any_number_of_starts_that_are_a_second_late_spends_nothing() -> None:
    core = promising()
    for _ in range(100):
        core.pool("n1", touched=[late(1.0)] * 5)
    assert core.state.delays.total_s == 500.0
    assert core.state.delays.counted_s(core.time_s) == 0.0
    assert core.state.pool.hold is None


def test_every_start_that_pilots_touched_is_in_the_ledger() -> None:
    core = promising()
    actions = core.pool("n1", touched=[late(3.0), late(None, "8")])
    told = [action.data for action in of(actions, Happened, kind="regular_start")]
    assert [(each["job"], each["delay_s"], each["start_s"]) for each in told] == [
        ("9", 3.0, NOW_S + 3.0),
        ("8", None, None),
    ]
    assert (core.state.delays.starts, core.state.delays.unknown, core.state.delays.total_s) == (2, 1, 3.0)


def test_the_alarm_stands_for_as_long_as_the_budget_is_spent() -> None:
    core = promising()
    core.pool("n1", touched=[late(100.0)])
    (alarm,) = delay_budget.alarms(core.state, core.time_s)
    assert alarm["kind"] == "delay"
    told = status.overview(core.state, core.time_s, "", "live", (), ())
    assert told["delays"]["counted_s"] == 99.0
    health = judged(told)
    assert (health.level, {problem.kind for problem in health.problems}) == ("CRITICAL", {"delay"})
    assert not delay_budget.alarms(core.state, core.time_s + 2 * HOUR_S)


def test_metrics_name_the_promise_as_what_blocks_growth() -> None:
    core = promising()
    core.pool("n1", touched=[late(100.0)])
    assert "delay" in gauges.ALARMS
    assert "promise" in gauges.BLOCKS


def test_what_is_spent_survives_a_restart_and_moves_with_a_clock_that_is_set() -> None:
    core = promising()
    core.pool("n1", touched=[late(100.0)])
    again = codec.decode(Delays, codec.encode(core.state.delays))
    assert again == core.state.delays
    moved = clock_shift.moved(core.state, 1e6)
    assert moved.delays.counted_s(core.time_s + 1e6) == 99.0


@pytest.mark.parametrize("back_s", [300.0, 1e6])
def test_a_clock_that_is_set_back_while_no_daemon_runs_does_not_stop_growth_for_longer_than_an_hour(
    back_s: float,
) -> None:
    delays = Delays().noted([late(100.0)], NOW_S)
    assert not delay_budget.spent(delays, Settings().changed(delay_s_per_hour=60.0), NOW_S - back_s)


@given(st.lists(st.tuples(st.floats(0.0, 900.0), st.none() | st.floats(0.0, 500.0)), max_size=60))
def test_what_counts_is_never_less_than_what_was_late_in_the_last_hour(told: list[tuple[float, float | None]]) -> None:
    delays, now_s = Delays(), NOW_S
    counted: list[tuple[float, float]] = []
    for passed_s, delay_s in told:
        before, now_s = delays, now_s + passed_s
        delays = delays.noted([late(delay_s)], now_s)
        if delay_s is not None:
            counted.append((now_s, max(0.0, late(delay_s).delay_s or 0.0) - 1.0))
        least_s = sum(max(0.0, each_s) for at_s, each_s in counted if now_s - at_s <= HOUR_S)
        most_s = sum(max(0.0, each_s) for at_s, each_s in counted if now_s - at_s <= HOUR_S + 120.0)
        assert least_s - 1e-6 <= delays.counted_s(now_s) <= most_s + 1e-6
        assert len(delays.recent) <= 63
        assert delays.starts == before.starts + 1
        assert delays.total_s >= before.total_s
