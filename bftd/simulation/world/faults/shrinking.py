"""The shortest history that still fails: faults, jobs, trainers, nodes and hours are left out as long as it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from bftd.simulation.world.world import EVENTS_BETWEEN, WorldResult, WorldSettings, run

Failing = Callable[[WorldSettings], WorldSettings | None]
"""Returns settings if a world of theirs fails, with the chance that they fail with; else None."""

Enough = Callable[[], bool]

_HOUR_S = 3600.0
_LEAST_HOURS = 0.05
_JUST_AFTER_S = 0.1
_CHANCES, _LONGER, _LOOKS = 3, 3, 4


def shrunk(settings: WorldSettings, result: WorldResult, enough: Enough) -> WorldSettings:
    """Return the least settings found that break the same rule as `result` does, until there is `enough`: or the same.

    What is left out changes the course of chance, so each world is tried with three. One that goes on for much longer
    than the first is given up.
    """
    most = _LOOKS + _LONGER * result.events // EVENTS_BETWEEN

    def tired(looks: Iterator[int]) -> bool:
        return next(looks) > most or enough()

    def failing(fewer: WorldSettings) -> WorldSettings | None:
        for more in range(_CHANCES):
            tried, looks = replace(fewer, chance=fewer.chance + more), count()
            if run(tried, partial(tired, looks)).rule == result.rule:
                return tried
        return None

    end_s = result.simulated_s + _JUST_AFTER_S
    faults = settings.all_faults()
    cut = tuple(fault for fault in faults if fault.at_s <= end_s)
    shorter = failing(replace(settings, history=cut, hours=min(settings.hours, end_s / _HOUR_S)))
    whole = shorter or replace(settings, history=faults)
    whole = replace(whole, jobs=tuple(job.number for job in whole.all_jobs()))
    least = smallest(whole, failing, enough)
    return settings if shorter is None and least == whole else least


def smallest(settings: WorldSettings, failing: Failing, enough: Enough) -> WorldSettings:
    """Return settings with a history and jobs, of which nothing can be left out so that the world still fails."""
    before: WorldSettings | None = None
    while settings != before and not enough():
        before = settings
        settings = _less(settings, "trainers", 0, failing, enough)
        settings = _fewer(settings, "history", failing, enough)
        settings = _fewer(settings, "jobs", failing, enough)
        settings = _less(settings, "nodes", 1, failing, enough)
        settings = _less(settings, "steps", 1, failing, enough)
        settings = _shorter(settings, failing, enough)
    return settings


def _fewer(settings: WorldSettings, name: str, failing: Failing, enough: Enough) -> WorldSettings:
    """Leave out all of a list, then halves, and so on to single ones, as long as the world fails."""
    size = len(getattr(settings, name))
    while size:
        at = 0
        while at < len(items := getattr(settings, name)) and not enough():
            found = failing(replace(settings, **{name: items[:at] + items[at + size :]}))
            if found is None:
                at += size
            else:
                settings = found
        size //= 2
    return settings


def _less(settings: WorldSettings, name: str, least: int, failing: Failing, enough: Enough) -> WorldSettings:
    """Halve a number as long as the world fails, then take one away at a time."""
    halved = True
    while (value := getattr(settings, name)) > least and not enough():
        less = max(least, value // 2 if halved else value - 1)
        if (found := failing(replace(settings, **{name: less}))) is not None:
            settings = found
        elif halved:
            halved = False
        else:
            break
    return settings


def _shorter(settings: WorldSettings, failing: Failing, enough: Enough) -> WorldSettings:
    while settings.hours > _LEAST_HOURS and not enough():
        found = failing(replace(settings, hours=settings.hours / 2))
        if found is None:
            break
        settings = found
    return settings
