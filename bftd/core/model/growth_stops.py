"""Limits on growth by the site's own will: pauses of administrators, and the hours of harvesting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf

from bftd.config import hours
from bftd.core.model import messages, timing
from bftd.core.model.domain import Lease, Settings, Trainer
from bftd.core.model.pause import Pause, PauseKind
from slurm_plugin.nodeset import fold

_ALL = "all:"


def of_all(pauses: Mapping[str, Pause]) -> Pause | None:
    """Return the pause of everything, if there is one."""
    return pauses.get(_ALL)


def of_node(pauses: Mapping[str, Pause], node: str) -> Pause | None:
    """Return the pause of one node, if there is one."""
    return pauses.get(f"node:{node}")


def of_trainer(pauses: Mapping[str, Pause], trainer: Trainer) -> Pause | None:
    """Return the pause of a trainer's user, or else of its account."""
    return next(iter(_of_owner(pauses, trainer)), None) if pauses else None  # there are nearly never any pauses


def releasing(pauses: Mapping[str, Pause], lease: Lease, trainer: Trainer) -> Pause | None:
    """Return the pause that asks a lease back, if there is one."""
    held = (of_all(pauses), of_node(pauses, lease.node), *_of_owner(pauses, trainer))
    return next((pause for pause in held if pause is not None and pause.release), None)


def _of_owner(pauses: Mapping[str, Pause], trainer: Trainer) -> list[Pause]:
    keys = [f"user:{trainer.user}"] + ([f"account:{trainer.account}"] if trainer.account else [])
    return [pauses[key] for key in keys if key in pauses]


def what(pauses: Iterable[Pause]) -> str:
    """Name what is paused: "everything", "nodes n[1-4]", "user ann", "account chem"; several with commas."""
    names: dict[PauseKind, list[str]] = defaultdict(list)
    for pause in pauses:
        names[pause.kind].append(pause.name)
    return ", ".join(named(kind, tuple(names[kind])) for kind in names)


@lru_cache(maxsize=64)  # a status names them again each time, and folding thousands of nodes takes a while
def named(kind: PauseKind, names: tuple[str, ...]) -> str:
    """Name what is paused, of one kind."""
    if kind == "all":
        return "everything"
    return f"{kind}{'s' if len(names) > 1 else ''} {fold(names) if kind == 'node' else ' and '.join(names)}"


def text(pause: Pause) -> str:
    """Say of one pause who paused what, and why."""
    return messages.paused(what((pause,)), pause.by, pause.why)


def folded(pauses: Iterable[Pause]) -> list[tuple[Pause, tuple[str, ...]]]:
    """Return the pauses with their names; those of several nodes by one order become one."""
    groups: dict[Pause, list[str]] = defaultdict(list)
    for pause in pauses:
        alike = pause if pause.kind != "node" else Pause("node", "", pause.by, pause.since_s, pause.why, pause.release)
        groups[alike].append(pause.name)
    return [(pause, tuple(names)) for pause, names in groups.items()]


def halt(pauses: Mapping[str, Pause], settings: Settings, at_s: float) -> str:
    """Return why nothing may grow at all; "" if something may."""
    pause = of_all(pauses)
    return text(pause) if pause is not None else hours_text(settings, at_s)


def hours_text(settings: Settings, at_s: float) -> str:
    """Say that this is no hour to begin anything; "" if it is one."""
    found = opening(settings, at_s)
    if found.open and found.until_s - at_s >= timing.CLOSE_AHEAD_S + timing.MINUTE_S:
        return ""
    when = hours.weekday_and_time(settings.zone, found.until_s) if found.until_s < inf else ""
    return messages.ends_soon(when) if found.open else messages.begins_again(when)


def closed(settings: Settings, at_s: float) -> bool:
    """Whether all lent nodes are to be given back because the hours of harvesting are over, or nearly so."""
    found = opening(settings, at_s)
    return not found.open or found.until_s - at_s <= timing.CLOSE_AHEAD_S


def longest_limit_s(settings: Settings, at_s: float) -> float:
    """Return the longest time limit of a pilot that is asked for now and placed as late as allowed."""
    return opening(settings, at_s).until_s - at_s - timing.PLACE_WITHIN_S


def opening(settings: Settings, at_s: float) -> hours.Opening:
    """Return whether this is an hour of harvesting, and until when that stays so."""
    if not settings.pool.harvest_at:
        return hours.ALWAYS
    return hours.opening(settings.pool.harvest_at, settings.zone, at_s)
