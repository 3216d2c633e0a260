"""The rooms that the daemon has made for regular jobs, read from its ledger."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_plugin.nodeset import expand

STARTED = "started"
MOVED = "moved"
"""Not the daemon's word: the same job's room is on other nodes from then on."""

_KIND = "room"
_END_KEYS = ("end", "over", "how")
_MADE = ("", "made", None)


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes that were kept for a job of Slurm's, in unix seconds; `until_s` is None while they are."""

    job_id: str
    nodes: tuple[str, ...]
    since_s: float
    until_s: float | None
    end: str
    leaving: tuple[str, ...] = ()


def read(ledger: Path) -> list[Kept]:
    """All rooms in a daemon's ledger, which may still be open there; none where there is no ledger."""
    if not ledger.exists():
        return []
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10.0)) as database:
        rows = database.execute("SELECT at_s, data FROM events WHERE kind = ? ORDER BY rowid", (_KIND,))
        return of_events((at_s, json.loads(data)) for at_s, data in rows)


def of_events(events: Iterable[tuple[float, Mapping[str, Any]]]) -> list[Kept]:
    """Rooms from the ledger's events, each with its time: one says that a room was made, another that it is over."""
    found: list[Kept] = []
    kept: dict[str, Kept] = {}
    for at_s, data in events:
        job, nodes = str(data.get("job", "")), _nodes(data.get("nodes", ()))
        end = next((data[key] for key in _END_KEYS if data.get(key) not in _MADE), None)
        before = kept.pop(job, None)
        if end is not None:
            room = before or Kept(
                job, nodes, float(data.get("since_s", at_s)), None, "", _nodes(data.get("leaving", ()))
            )
            found.append(_over(room, at_s, str(end)))
            continue
        if before is not None:
            found.append(_over(before, at_s, MOVED))
        kept[job] = Kept(job, nodes, float(data.get("since_s", at_s)), None, "", _nodes(data.get("leaving", ())))
    return sorted([*found, *kept.values()], key=lambda room: room.since_s)


def _over(room: Kept, at_s: float, end: str) -> Kept:
    return Kept(room.job_id, room.nodes, room.since_s, at_s, end, room.leaving)


def _nodes(value: Any) -> tuple[str, ...]:
    return tuple(expand(value)) if isinstance(value, str) and value else tuple(value or ())
