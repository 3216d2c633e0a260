"""How often a checkpoint is saved: by what a save costs, how often steps are lost, and what the user allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.driver.saving.interval import Saves, interval_s
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow


def trained(
    saves: Saves, until_s: float, save_s: float = 0.0, *, losses: int = 0, upload_s: float = 0.0
) -> list[float]:
    """When one group saves that trains from 0 s on, looked at once a second; what it has cost is known 1 s later."""
    at_s, now_s = [], 0.0
    while now_s < until_s:
        saves.look(now_s, now_s > 0.0, 1, losses, upload_s)
        if saves.due and saves.worth(save_s if at_s else 0.0):
            saves.asked(now_s)
            at_s.append(now_s)
        now_s += 1.0
    return at_s


@given(st.floats(0, 1e4), st.floats(1, 1e7), st.floats(1e-4, 0.05), st.floats(0, 1e3))
def test_saves_take_no_more_than_their_share_and_are_twenty_times_their_cost_apart(
    cost_s: float, loss_every_s: float, share: float, least_s: float
) -> None:
    every_s = interval_s(cost_s, loss_every_s, share, least_s)
    assert cost_s <= share * every_s * (1 + 1e-9)
    assert every_s >= max(least_s, 20.0 * cost_s * (1 - 1e-9))


@pytest.mark.parametrize("cost_s", [0.1, 1.0, 12.0])
def test_within_the_share_it_is_the_interval_with_the_least_waste(cost_s: float) -> None:
    loss_every_s = 1e6
    best_s = interval_s(cost_s, loss_every_s, 0.02, 0.0)

    def waste(every_s: float) -> float:
        return cost_s / every_s + every_s / 2.0 / loss_every_s

    assert all(waste(best_s) < waste(factor * best_s) for factor in (0.5, 0.9, 1.1, 2.0))


def test_the_first_save_comes_early_and_what_it_costs_puts_the_next_off() -> None:
    assert trained(Saves(0.02), 1500.0, 12.0) == [10.0, 610.0, 1210.0]
    assert trained(Saves(0.05), 400.0, 12.0) == [10.0, pytest.approx(10.0 + math.sqrt(24.0 * 3600.0), abs=20.0)]
    assert trained(Saves(0.02), 35.0, 0.001) == [10.0, 20.0, 30.0]


def test_who_loses_steps_may_save_more_unless_the_user_says_how_much() -> None:
    apart_s = {
        (share, losses): trained(Saves(share), 2000.0, 12.0, losses=losses)[2] - 10.0
        for share in (None, 0.02)
        for losses in (0, 60)
    }
    assert apart_s[None, 0] == apart_s[0.02, 0] == apart_s[0.02, 60]
    assert apart_s[None, 60] < 0.5 * apart_s[None, 0]


def test_a_save_waits_until_the_one_before_has_arrived() -> None:
    assert trained(Saves(0.02), 100.0, 0.001, upload_s=45.0) == [45.0, 90.0]


def test_who_loses_nodes_often_saves_often() -> None:
    calm, rough = (len(trained(Saves(0.02), 3600.0, 0.1, losses=losses)) for losses in (0, 30))
    assert rough > 3 * calm


def test_a_group_begins_with_what_was_saved_and_the_costs_are_not_forgotten() -> None:
    saves = Saves(0.02)
    trained(saves, 30.0, 12.0)
    saves.look(1000.0, True, 2, 0, 0.0)
    assert not saves.due
    saves.look(1599.0, True, 2, 0, 0.0)
    assert not saves.due
    saves.look(1600.0, True, 2, 0, 0.0)
    assert saves.due


def test_one_save_that_met_a_busy_file_server_is_no_measure() -> None:
    saves, now_s = Saves(0.02), 0.0
    saves.look(now_s, True, 1, 0, 0.0)
    for save_s in (0.1, 0.1, 60.0):
        saves.asked(now_s)
        now_s += 1000.0
        saves.look(now_s, True, 1, 0, 0.0)
        saves.worth(save_s)
    assert saves.interval_s < 60.0


def test_the_interval_is_told_once_it_is_measured_and_again_when_it_is_another() -> None:
    saves = Saves(0.02)
    assert saves.line() is None
    trained(saves, 30.0, 12.0)
    told = saves.line()
    assert told is not None
    assert says(
        told, "elastic.saves.every", span="10 min", cost="12", share="2.0%", lost=wording("elastic.saves.none_lost")
    )
    assert saves.line() is None
    saves.look(31.0, True, 1, 10, 0.0)
    assert saves.line() is None, "the share binds as before"


def test_where_the_share_keeps_saves_rare_and_steps_are_lost_the_line_says_what_would_help() -> None:
    saves = Saves(0.02)
    trained(saves, 30.0, 12.0, losses=10)
    assert says(saves.line() or "", "elastic.saves.fewer", times=10, most="0.05")
