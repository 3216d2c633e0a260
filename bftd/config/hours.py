"""The hours in which nodes are harvested: a week's windows on the host's clock. Pure.

A window is open whenever a wall clock at the daemon's host shows a time within it, also on the days on which that clock
is changed. A window that ends before it begins reaches into the next day and belongs to the day on which it begins.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from math import inf

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MINUTE_S, _HOUR_S, _DAY_S, _WEEK_S = 60, 3600, 86400, 604800
# Seconds from Monday 00:00 to the weekday of 1 January 1970, a Thursday.
_EPOCH_S = 3 * _DAY_S
_ITEM = re.compile(r"(?:([A-Za-z]+)(?:-([A-Za-z]+))?)?\s*(?:(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d))?")
_WANTED = 'write days, hours or both, as in "Mon-Fri 20:00-07:00, Sat-Sun"'

# The seconds to add to universal time for local time, each with the unix time from which it holds, in order.
Zone = tuple[tuple[float, float], ...]
UTC: Zone = ((-inf, 0.0),)
# Windows in seconds since Monday 00:00, in order, neither touching nor overlapping.
Windows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """Whether nodes are harvested, and the unix time until which that stays so (infinity: for good)."""

    open: bool
    until_s: float


ALWAYS = Opening(True, inf)


def check(text: str) -> None:
    """Raise ValueError with one line for text that is no list of windows; the empty text means always."""
    if text.strip():
        _windows(text)


@lru_cache(maxsize=64)
def opening(text: str, zone: Zone, at_s: float) -> Opening:
    """Say whether the windows of `text` are open at a unix time, and until when; raises ValueError as `check` does."""
    if not text.strip():
        return ALWAYS
    windows = _windows(text)
    now_open = _is_open(windows, _local_s(zone, at_s)[0])
    moment_s = at_s
    # if nothing changes within two weeks, whatever the clock does meanwhile, nothing ever changes
    while moment_s <= at_s + 2 * _WEEK_S:
        local_s, changes_s = _local_s(zone, moment_s)
        moment_s = min(moment_s + _to_boundary_s(windows, local_s), changes_s)
        if _is_open(windows, _local_s(zone, moment_s)[0]) != now_open:
            return Opening(now_open, moment_s)
    return Opening(now_open, inf)


def weekday_and_time(zone: Zone, at_s: float) -> str:
    """Format a unix time as local weekday and time: "Mon 20:00"."""
    second = int(_local_s(zone, at_s)[0] % _WEEK_S)
    day, second = divmod(second, _DAY_S)
    return f"{_DAYS[day]} {second // _HOUR_S:02d}:{second % _HOUR_S // _MINUTE_S:02d}"


def time_of_day(zone: Zone, at_s: float) -> str:
    """Format a unix time as local time to the second: "20:00:05"."""
    second = int(_local_s(zone, at_s)[0] % _DAY_S)
    return f"{second // _HOUR_S:02d}:{second % _HOUR_S // _MINUTE_S:02d}:{second % _MINUTE_S:02d}"


def _local_s(zone: Zone, at_s: float) -> tuple[float, float]:
    """Return the local seconds since a Monday 00:00, and the unix time of the next change of the clock."""
    place = max(0, bisect_right(zone, (at_s, inf)) - 1)
    changes_s = zone[place + 1][0] if place + 1 < len(zone) else inf
    return at_s + zone[place][1] + _EPOCH_S, changes_s


def _is_open(windows: Windows, local_s: float) -> bool:
    second = local_s % _WEEK_S
    return any(begin_s <= second < end_s for begin_s, end_s in windows)


def _to_boundary_s(windows: Windows, local_s: float) -> float:
    """Return the seconds to the next beginning or end of a window."""
    second = local_s % _WEEK_S
    boundaries = sorted({boundary for window in windows for boundary in window})
    return next((boundary - second for boundary in boundaries if boundary > second), _WEEK_S + boundaries[0] - second)


@lru_cache(maxsize=8)
def _windows(text: str) -> Windows:
    pieces = []
    for item in text.split(","):
        for begin_s, end_s in _item(item):
            pieces += [(begin_s, min(end_s, _WEEK_S))]
            pieces += [(0, end_s - _WEEK_S)] if end_s > _WEEK_S else []
    merged: list[tuple[int, int]] = []
    for begin_s, end_s in sorted(pieces):
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end_s, merged[-1][1]))
        else:
            merged.append((begin_s, end_s))
    return tuple(merged)


def _item(text: str) -> list[tuple[int, int]]:
    """Return the windows of one item: days, hours or both."""
    words = text.strip()
    found = _ITEM.fullmatch(words)
    if not words or found is None:
        raise ValueError(f"{words!r} is no window: {_WANTED}")
    first, last, *clock = found.groups()
    days = range(7) if first is None else _days(first, last or first)
    if clock[0] is None:
        return [(day * _DAY_S, (day + 1) * _DAY_S) for day in days]
    begin_s, end_s = _time_s(clock[0], clock[1]), _time_s(clock[2], clock[3])
    if begin_s in (end_s, _DAY_S):
        raise ValueError(f"{words!r} is no window: it must end at another time than it begins; {_WANTED}")
    longer_s = _DAY_S if end_s < begin_s else 0
    return [(day * _DAY_S + begin_s, day * _DAY_S + end_s + longer_s) for day in days]


def _days(first: str, last: str) -> list[int]:
    """Return the days from `first` to `last`, across the end of the week if necessary."""
    places = []
    for name in (first, last):
        if name.capitalize() not in _DAYS:
            raise ValueError(f"{name!r} is no day: write {', '.join(_DAYS[:-1])} or {_DAYS[-1]}")
        places.append(_DAYS.index(name.capitalize()))
    return [day % 7 for day in range(places[0], places[0] + (places[1] - places[0]) % 7 + 1)]


def _time_s(hour: str, minute: str) -> int:
    if int(minute) > 59 or int(hour) * 60 + int(minute) > 24 * 60:
        raise ValueError(f"{hour}:{minute} is no time of a day: write 00:00 to 24:00")
    return int(hour) * _HOUR_S + int(minute) * _MINUTE_S
