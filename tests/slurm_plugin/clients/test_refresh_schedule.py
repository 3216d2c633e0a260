"""Whose turn it is to be read, in simulated time: never more requests than Slurm is to answer, and nobody starves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slurm_plugin.clients.refresh_schedule import PACE_S, Reading, Turns
from slurm_plugin.clients.slow_settings import CONFIG, LOAD, PARTITIONS, READINGS, RESERVATIONS, WISHES

HOUR_S = 3600


def polled(for_s: int, every_s: float = 1.0, unwanted: tuple[str, ...] = ()) -> list[tuple[float, str]]:
    """When which reading was done, with a poll every so many seconds."""
    turns, found = Turns(READINGS), []
    for poll in range(int(for_s / every_s)):
        now_s = 1000.0 + poll * every_s
        if (turn := turns.next(now_s, unwanted)) is not None:
            turns.done(turn, now_s)
            found.append((now_s - 1000.0, turn))
    return found


def times(found: list[tuple[float, str]], name: str) -> list[float]:
    return [at_s for at_s, turn in found if turn == name]


@pytest.mark.parametrize("poll_s", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("minutes", [10, 60, 600])
def test_all_readings_together_cost_as_much_as_the_reservations_alone_did(poll_s: float, minutes: int) -> None:
    found = polled(60 * minutes, poll_s)
    # once every 15 s; the first ones come a little early
    assert sum(READINGS[turn].requests for _, turn in found) <= 60 * minutes / PACE_S + 2


@pytest.mark.parametrize("poll_s", [15.0, 20.0, 60.0])
def test_where_polls_are_rare_one_of_them_still_reads_one_thing_more(poll_s: float) -> None:
    found = polled(HOUR_S, poll_s)
    assert len({at_s for at_s, _ in found}) == len(found)
    assert sum(READINGS[turn].requests for _, turn in found) <= HOUR_S / poll_s + 2 * HOUR_S / 300.0
    assert {turn for _, turn in found} == set(READINGS)


def test_reservations_come_first_and_are_never_older_than_half_a_minute() -> None:
    at_s = times(polled(HOUR_S), RESERVATIONS)
    assert at_s[0] == 0.0
    assert max(later - earlier for earlier, later in pairwise(at_s)) <= 31.0


def test_settings_partitions_and_the_load_are_known_a_few_polls_after_the_start() -> None:
    assert {turn for _, turn in polled(4)} == {RESERVATIONS, CONFIG, PARTITIONS, LOAD}


def test_the_load_is_read_about_once_in_a_cycle_of_slurms_default_length() -> None:
    at_s = times(polled(HOUR_S), LOAD)
    assert HOUR_S / len(at_s) <= 48.0
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    assert max(gaps) <= 180.0


@pytest.mark.parametrize(("name", "within_s"), [(CONFIG, 700.0), (PARTITIONS, 760.0), (WISHES, 420.0)])
def test_what_is_read_rarely_is_not_starved(name: str, within_s: float) -> None:
    at_s = times(polled(HOUR_S), name)
    assert max(later - earlier for earlier, later in pairwise([0.0, *at_s])) <= within_s


def test_what_nobody_wants_costs_nobody_a_turn() -> None:
    found = polled(HOUR_S, unwanted=(WISHES,))
    assert not times(found, WISHES)
    assert len(times(found, LOAD)) > len(times(polled(HOUR_S), LOAD))


def test_a_reading_that_failed_is_tried_again_a_minute_later() -> None:
    turns = Turns({"rare": Reading(600.0)})
    turns.done("rare", 0.0, worked=False)
    assert turns.next(59.0) is None
    assert turns.next(60.0) == "rare"
