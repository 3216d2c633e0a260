"""The hours of harvesting, against the host's clock read minute by minute."""

from __future__ import annotations

import os
import time
from datetime import datetime
from math import inf
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.base.errors import ConfigError
from bftd.config.hours import ALWAYS, UTC, Opening, Zone, check, opening, time_of_day, weekday_and_time
from bftd.config_file import parse
from bftd.service.clock import local_zone
from tests.support.messages import excerpt

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
BERLIN = ZoneInfo("Europe/Berlin")
# A week before either change of the clock in 2026.
SPRING_S = datetime(2026, 3, 24, tzinfo=BERLIN).timestamp()
AUTUMN_S = datetime(2026, 10, 20, tzinfo=BERLIN).timestamp()
# Days, and begin and end in minutes.
Item = tuple[int, int, int | None, int | None]


@pytest.fixture(scope="module")
def zone() -> Any:
    """Berlin's, as a daemon there would read it."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    yield local_zone(SPRING_S)
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def text_of(items: list[Item]) -> str:
    parts = []
    for first, last, begin, end in items:
        days = DAYS[first] if first == last else f"{DAYS[first]}-{DAYS[last]}"
        clock = (
            ""
            if begin is None or end is None
            else f" {begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"
        )
        parts.append(days + clock)
    return ", ".join(parts)


def shown_open(items: list[Item], at_s: float) -> bool:
    """Whether the wall clock is within one of the windows: asked of the calendar, minute for minute."""
    local = datetime.fromtimestamp(at_s, BERLIN)
    today, minute = local.weekday(), local.hour * 60 + local.minute
    for first, last, begin, end in items:
        days = {day % 7 for day in range(first, first + (last - first) % 7 + 1)}
        if begin is None or end is None:
            if today in days:
                return True
        elif begin < end:
            if today in days and begin <= minute < end:
                return True
        elif (today in days and minute >= begin) or ((today - 1) % 7 in days and minute < end):
            return True
    return False


CLOCK = st.tuples(st.integers(0, 1439), st.integers(0, 1440)).filter(lambda pair: pair[0] != pair[1])
NEAR_TWO = st.tuples(st.integers(60, 240), st.integers(60, 240)).filter(lambda pair: pair[0] != pair[1])
ITEM = st.tuples(st.integers(0, 6), st.integers(0, 6), st.none() | CLOCK | NEAR_TWO).map(
    lambda drawn: (drawn[0], drawn[1], *(drawn[2] or (None, None)))
)


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(ITEM, min_size=1, max_size=3),
    season_s=st.sampled_from([SPRING_S, AUTUMN_S]),
    minute=st.integers(0, 10 * 1440),
)
def test_windows_are_open_when_the_wall_clock_says_so_also_when_it_is_changed(
    zone: Zone, items: list[Item], season_s: float, minute: int
) -> None:
    at_s = season_s + 60.0 * minute
    told = opening(text_of(items), zone, at_s)
    assert told.open == shown_open(items, at_s)
    end_s = min(told.until_s, at_s + 9 * 86400.0)
    assert all(shown_open(items, moment) == told.open for moment in _minutes(at_s, end_s))
    if told.until_s < inf:
        assert shown_open(items, told.until_s) != told.open


def _minutes(at_s: float, end_s: float) -> list[float]:
    return [at_s + 60.0 * minute for minute in range(int((end_s - at_s) // 60)) if at_s + 60.0 * minute < end_s]


def test_a_window_over_midnight_belongs_to_the_day_it_begins(zone: Zone) -> None:
    def at(day: int, hour: int) -> Opening:
        return opening("Fri 20:00-07:00", zone, datetime(2026, 6, day, hour, tzinfo=BERLIN).timestamp())

    assert not at(5, 6).open, "Friday morning belongs to Thursday"
    assert at(5, 21).open
    assert at(6, 6).open, "Saturday morning belongs to Friday"
    assert not at(6, 7).open


def test_always_is_the_empty_text_and_every_day() -> None:
    assert opening("", UTC, 5.0) == opening(" ", UTC, 5.0) == ALWAYS
    assert opening("Mon-Sun", UTC, 5.0) == ALWAYS
    assert opening("00:00-24:00", UTC, 5.0) == ALWAYS


def test_hours_without_days_are_of_every_day_and_days_go_round_the_week() -> None:
    monday_s = 4 * 86400.0
    assert opening("08:00-09:00", UTC, monday_s + 8.5 * 3600) == Opening(True, monday_s + 9 * 3600)
    assert opening("Sat-Mon", UTC, monday_s) == Opening(True, monday_s + 86400)
    assert opening("tue", UTC, monday_s) == Opening(False, monday_s + 86400)
    assert weekday_and_time(UTC, monday_s + 20 * 3600) == "Mon 20:00"


def test_a_time_of_day_is_that_of_the_zone_to_the_second() -> None:
    assert time_of_day(UTC, 20 * 3600 + 65.9) == "20:01:05"
    assert time_of_day(((float("-inf"), 7200.0),), 22 * 3600) == "00:00:00"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Mon-Fr 20:00-07:00", excerpt("bftd.hours.not_a_day", name="Fr")),
        ("20:00", "'20:00' is no window"),
        ("Mon,", "'' is no window"),
        ("Mon 20:00-25:00", "25:00 is no time"),
        ("Mon 20:61-21:00", "20:61 is no time"),
        ("Mon 08:00-08:00", excerpt("bftd.hours.empty_window")),
        ("24:00-07:00", excerpt("bftd.hours.empty_window")),
        ("night", excerpt("bftd.hours.not_a_day", name="night")),
    ],
)
def test_a_bad_window_is_refused_with_one_line_by_the_configuration(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="write"):
        check(text)
    with pytest.raises(ConfigError) as caught:
        parse(f'[pool]\nharvest_at = "{text}"', "bftd.toml")
    assert str(caught.value).startswith("bftd.toml: [pool] harvest_at: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_of_a_zone_is_what_the_host_says_for_years(zone: Zone) -> None:
    for day in range(0, 19 * 365, 29):
        at_s = SPRING_S + 86400.0 * day
        offset = datetime.fromtimestamp(at_s, BERLIN).utcoffset()
        assert offset is not None
        assert [o for begin, o in zone if begin <= at_s][-1] == offset.total_seconds()
