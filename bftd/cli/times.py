"""Times in the most common formats of Slurm's sacct and sreport: dates, times of today, and relative times."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import click

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_RELATIVE = re.compile(r"now(?:([+-])(\d{1,9})([a-z]*))?")
_SPAN = re.compile(r"(\d{1,9})([a-z]*)")
_OF_DAY = {"today": 0, "midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_LATEST_S = 1e11  # the daemon's limit: the year 5138
FORMS = "2026-01-31, 2026-01-31T08:00, now-7days or noon"


def moment(text: str, now_s: float) -> float:
    """Convert a time to unix seconds; raises ValueError.

    Times of day are today's; all dates and times are local.
    """
    from slurm_plugin.read.dates import local

    words = text.strip().lower()
    if words.isdecimal():
        return float(words)
    if found := _RELATIVE.fullmatch(words):
        sign, count, unit = found.groups()
        return now_s + (_seconds(int(count), unit) * (-1 if sign == "-" else 1) if sign else 0)
    if (hour := _OF_DAY.get(words)) is not None:
        return _today(now_s, hour, 0, 0)
    if found := _TIME.fullmatch(words):
        return _today(now_s, *(int(part or 0) for part in found.groups()))
    return local(text.strip())[0]


def option(*names: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a click option for such a time; its value is in unix seconds."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        try:
            at_s = moment(value, time.time())
            if not 0.0 <= at_s <= _LATEST_S:
                raise ValueError(value)
            return at_s
        except ValueError:
            raise click.BadParameter(f"{value!r} is no time such as {FORMS}.") from None

    return click.option(*names, callback=read, metavar="TIME", help=help)


def duration(text: str) -> float:
    """Convert a time span such as 10min, 1hour or 600 to seconds; raises ValueError."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return _seconds(int(found[1]), found[2])


def span(*names: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a click option for such a time span; its value is in seconds."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        try:
            return duration(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is no time span such as 10min, 1hour or 1day.") from None

    return click.option(*names, callback=read, metavar="SPAN", help=help)


def _seconds(count: int, unit: str) -> int:
    """Convert a number of a unit to seconds; like in Slurm, any prefix of a unit will do, and "" means seconds."""
    for name, unit_s in _UNITS_S.items():
        if f"{name}s".startswith(unit):
            return count * unit_s
    raise ValueError(unit)


def _today(now_s: float, hour: int, minute: int, second: int) -> float:
    day = datetime.fromtimestamp(now_s).replace(hour=0, minute=0, second=0, microsecond=0)
    if (hour, minute, second) >= (24, 0, 1) or minute > 59 or second > 59:
        raise ValueError(f"{hour}:{minute}:{second}")
    return (day + timedelta(hours=hour, minutes=minute, seconds=second)).timestamp()
