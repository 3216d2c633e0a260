"""Snapshots of a cluster in a file, as they were read one after another.

JSON lines, compressed with xz where they are kept. The first line is a head: {"format": ..., "version": ..., and what
the writer says of the recording}. Each line after it is a snapshot: its times, and what is not as in the one before. A
node, job, reservation or partition that has changed has only the fields that changed, one that is new all its fields;
null stands for one that has gone. Fields that the types no longer have are passed over, those that they have won since
are at their defaults. Jobs are read in the order in which they were first seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TextIO

from slurm_plugin.read.types import Depth, Job, JobRequest, Node, Partition, Reservation, Scheduler, Snapshot

FORMAT = "bftd snapshots"
VERSION = 1

_Row = dict[str, Any]
_TYPES: dict[str, type] = {"nodes": Node, "jobs": Job, "reservations": Reservation, "partitions": Partition}


class Writer:
    """Writes snapshots to a text file that is open."""

    def __init__(self, file: TextIO, head: Mapping[str, Any]) -> None:
        self._file = file
        self._before: dict[str, dict[str, _Row]] = {name: {} for name in _TYPES}
        self._scheduler: _Row = {}
        self._line({"format": FORMAT, "version": VERSION, **head})

    def add(self, snapshot: Snapshot) -> None:
        """Append a snapshot."""
        line: dict[str, Any] = {"time_s": round(snapshot.time_s, 3)}
        if snapshot.begun_s is not None:
            line["begun_s"] = round(snapshot.begun_s, 3)
        for name, rows in _tables(snapshot).items():
            if changed := _changed(self._before[name], rows):
                line[name] = changed
            self._before[name] = rows
        scheduler = _plain(snapshot.scheduler)
        if scheduler != self._scheduler:
            line["scheduler"] = self._scheduler = scheduler
        self._line(line)

    def _line(self, what: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(what, separators=(",", ":")) + "\n")


def head(line: str) -> dict[str, Any]:
    """Read the first line of a file; raises ValueError for another format or version."""
    found = json.loads(line)
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"not version {VERSION} of {FORMAT}")
    return found


def read(lines: Iterable[str]) -> Iterator[Snapshot]:
    """Read the snapshots of the lines behind the head."""
    rows: dict[str, dict[str, _Row]] = {name: {} for name in _TYPES}
    made: dict[str, dict[str, Any]] = {name: {} for name in _TYPES}
    scheduler = Scheduler()
    for text in lines:
        line = json.loads(text)
        for name, type_ in _TYPES.items():
            for key, change in line.get(name, {}).items():
                if change is None:
                    del rows[name][key], made[name][key]
                else:
                    row = rows[name][key] = {**rows[name].get(key, {}), **change}
                    made[name][key] = _object(type_, row)
        if "scheduler" in line:
            scheduler = _object(Scheduler, line["scheduler"])
        yield Snapshot(
            time_s=line["time_s"],
            nodes=dict(made["nodes"]),
            jobs=tuple(made["jobs"].values()),
            reservations=tuple(made["reservations"].values()),
            partitions=dict(made["partitions"]),
            scheduler=scheduler,
            begun_s=line.get("begun_s"),
        )


def _tables(snapshot: Snapshot) -> dict[str, dict[str, _Row]]:
    return {
        "nodes": {name: _plain(node) for name, node in snapshot.nodes.items()},
        "jobs": {job.id: _plain(job) for job in snapshot.jobs},
        "reservations": {one.name: _plain(one) for one in snapshot.reservations},
        "partitions": {name: _plain(one) for name, one in snapshot.partitions.items()},
    }


def _changed(before: Mapping[str, _Row], now: Mapping[str, _Row]) -> dict[str, _Row | None]:
    changed: dict[str, _Row | None] = {key: None for key in before if key not in now}
    for key, row in now.items():
        old = before.get(key)
        if old is None:
            changed[key] = row
        elif old != row:
            changed[key] = {name: value for name, value in row.items() if old[name] != value}
    return changed


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


def _object(type_: type, row: Mapping[str, Any]) -> Any:
    """An object of one of the types; those have sets in `flags`, and tuples wherever JSON has lists."""
    known = {field.name for field in fields(type_)}
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name not in known:
            continue
        if name == "flags":
            value = frozenset(value)
        elif name == "request":
            value = _object(JobRequest, value)
        elif name == "depths":
            value = tuple(_object(Depth, one) for one in value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return type_(**values)
