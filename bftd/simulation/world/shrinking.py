"""The shortest history that still fails: faults, jobs, trainers, nodes and hours are left out as long as it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bftd.simulation.world.world import WorldResult, WorldSettings, run

T = TypeVar("T")
Fails = Callable[[WorldSettings], bool]
Enough = Callable[[], bool]

_HOUR_S = 3600.0
_LEAST_HOURS = 0.05
_JUST_AFTER_S = 0.1


def shrunk(settings: WorldSettings, result: WorldResult, enough: Enough) -> WorldSettings:
    """Return the least settings found that break the same rule as `result` does, until there is `enough`."""

    def fails(fewer: WorldSettings) -> bool:
        return run(fewer, enough).rule == result.rule

    end_s = result.simulated_s + _JUST_AFTER_S
    settings = replace(settings, history=settings.all_faults())
    cut = tuple(fault for fault in settings.history or () if fault.at_s <= end_s)
    before = replace(settings, history=cut, hours=min(settings.hours, end_s / _HOUR_S))
    if fails(before):
        settings = before
    settings = replace(settings, jobs=tuple(job.number for job in settings.all_jobs()))
    return smallest(settings, fails, enough)


def smallest(settings: WorldSettings, fails: Fails, enough: Enough) -> WorldSettings:
    """Return settings with a history and jobs, of which nothing can be left out so that the world still fails."""
    before: WorldSettings | None = None
    while settings != before and not enough():
        before = settings
        settings = _less(settings, "trainers", 0, fails, enough)
        settings = _fewer(settings, "history", fails, enough)
        settings = _fewer(settings, "jobs", fails, enough)
        settings = _less(settings, "nodes", 1, fails, enough)
        settings = _less(settings, "steps", 1, fails, enough)
        while settings.hours > _LEAST_HOURS and not enough():
            less = replace(settings, hours=settings.hours / 2)
            if not fails(less):
                break
            settings = less
    return settings


def _fewer(settings: WorldSettings, name: str, fails: Fails, enough: Enough) -> WorldSettings:
    left = fewest(getattr(settings, name), lambda some: fails(replace(settings, **{name: some})), enough)
    return replace(settings, **{name: left})


def fewest(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool], enough: Enough) -> tuple[T, ...]:
    """Return items of which none can be left out so that it still fails: all, then halves, and so on to single ones."""
    size = len(items)
    while size:
        at = 0
        while at < len(items) and not enough():
            less = items[:at] + items[at + size :]
            if fails(less):
                items = less
            else:
                at += size
        size //= 2
    return items


def _less(settings: WorldSettings, name: str, least: int, fails: Fails, enough: Enough) -> WorldSettings:
    """Halve a number as long as the world fails, then take one away at a time."""
    halved = True
    while (value := getattr(settings, name)) > least and not enough():
        fewer = replace(settings, **{name: value // 2 if halved else value - 1})
        if getattr(fewer, name) >= least and fails(fewer):
            settings = fewer
        elif halved:
            halved = False
        else:
            break
    return settings
