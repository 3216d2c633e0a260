"""Histories as JSON, and their logs side by side."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import zip_longest
from typing import Any

from bftd.simulation.world.faults.kinds import KINDS, Fault
from bftd.simulation.world.workloads import WORKLOADS
from bftd.simulation.world.world import WorldSettings

_OUTSIDE = frozenset({"slurm", "fault", "world"})
"""Those whose lines stand in one column: what happens to the programs."""

_TIME = 12
_GAP = " | "
_LEAST = 24


def to_json(settings: WorldSettings) -> dict[str, Any]:
    """Return settings as JSON data, without what is as ever."""
    usual = asdict(WorldSettings(settings.seed))
    found = {name: value for name, value in asdict(settings).items() if name == "seed" or value != usual[name]}
    if settings.history is not None:
        found["history"] = [[fault.at_s, fault.kind, fault.seed] for fault in settings.history]
        found.pop("faults", None)
    return found


def of_json(text: str) -> WorldSettings:
    """Return the settings that `to_json` gave, alone or as the history of a result; raises ValueError."""
    data = json.loads(text)
    if isinstance(data, dict) and isinstance(data.get("shortest"), dict):
        data = data["shortest"]
    known = {field.name for field in fields(WorldSettings)}
    if not isinstance(data, dict) or not isinstance(data.get("seed"), int) or not data.keys() <= known:
        raise ValueError(f"a history is an object with a seed and some of {', '.join(sorted(known))}")
    for name in ("faults", "jobs"):
        if data.get(name) is not None:
            data[name] = tuple(data[name])
    if data.get("history") is not None:
        data["history"] = tuple(Fault(*fault) for fault in data["history"])
    settings = WorldSettings(**data)
    unknown = {fault.kind for fault in settings.all_faults()} - KINDS.keys()
    if unknown or settings.workload not in WORKLOADS:
        raise ValueError(f"nobody knows {', '.join(sorted(unknown)) or settings.workload}")
    return settings


def side_by_side(log: Sequence[str], width: int) -> Iterator[str]:
    """Lay out a world's log in so many characters: a column for each program, one for Slurm, faults and the world."""
    entries = [_entry(line) for line in log]
    programs = sorted({who for _, who, _ in entries} - _OUTSIDE)
    columns = max(1, min(1 + len(programs), (width - _TIME) // (_LEAST + len(_GAP))))
    last = columns - 1  # programs that fit no more share the last column
    each = max(_LEAST, (width - _TIME) // columns - len(_GAP))
    place = {who: min(1 + number, last) for number, who in enumerate(programs)}
    heads = ["Slurm, faults"] + [""] * last
    for who, column in place.items():
        heads[column] = f"{heads[column]}, {who}" if heads[column] else who
    yield from _row("h:mm:ss", heads, each)
    yield _GAP.join(["-" * (_TIME - 1), *("-" * each for _ in heads)])
    shared = {who for who in programs if sum(column == place[who] for column in place.values()) > 1 or not place[who]}
    for time_s, who, text in entries:
        cells = [""] * columns
        cells[place.get(who, 0)] = f"{who}: {text}" if who in shared or who == "fault" else text
        yield from _row(f"{int(time_s // 3600)}:{time_s // 60 % 60:02.0f}:{time_s % 60:06.3f}", cells, each)


def _entry(line: str) -> tuple[float, str, str]:
    time_s, _, said = line.partition(" ")
    who, _, text = said.partition(": ")
    return float(time_s), who, text


def _row(head: str, cells: Sequence[str], width: int) -> Iterator[str]:
    wrapped = [[part for line in cell.splitlines() for part in textwrap.wrap(line, width) or [""]] for cell in cells]
    for number, parts in enumerate(zip_longest(*wrapped, fillvalue="")):
        first = head if number == 0 else ""
        yield _GAP.join([f"{first:<{_TIME - 1}}", *(f"{part:<{width}}" for part in parts)]).rstrip()
