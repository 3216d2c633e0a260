"""The earmarks that the daemon has made for regular jobs, read from its ledger."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_plugin.nodeset import expand

STARTED = "started"
MOVED = "moved"
"""Not the daemon's word: it told of an earmark for the same job again, without an end of the first."""

_MADE, _OVER = "earmark", "earmark_over"
_OLD = {"room": _MADE, "room_over": _OVER}
"""The names of bftd 0.1, read until 1.1."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes that were kept for a job of Slurm's, in unix seconds; `until_s` is None while they are.

    `idle_node_s` are the node-seconds in which no pilot was on them, None where the daemon has not told.
    """

    job_id: str
    nodes: tuple[str, ...]
    since_s: float
    until_s: float | None = None
    end: str = ""
    leaving: tuple[str, ...] = ()
    idle_node_s: float | None = None


def read(ledger: Path) -> list[Kept]:
    """All earmarks in a daemon's ledger, which may still be open there; none where there is no ledger."""
    if not ledger.exists():
        return []
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=10.0)) as database:
        rows = database.execute(
            "SELECT at_s, kind, data FROM events WHERE kind IN (?, ?, ?, ?) ORDER BY rowid", (_MADE, _OVER, *_OLD)
        )
        return of_events((at_s, kind, json.loads(data)) for at_s, kind, data in rows)


def of_events(events: Iterable[tuple[float, str, Mapping[str, Any]]]) -> list[Kept]:
    """Earmarks from the ledger's events: time, kind (docs/howto/history.md) and fields, which may be missing."""
    found: list[Kept] = []
    kept: dict[str, Kept] = {}
    for at_s, kind, data in events:
        job = str(data.get("job", ""))
        before = kept.pop(job, None)
        if _OLD.get(kind, kind) == _OVER:
            earmark = before or Kept(job, _nodes(data.get("nodes")), at_s - float(data.get("duration_s") or 0.0))
            idle_node_s = data.get("kept_node_seconds")
            found.append(replace(earmark, until_s=at_s, end=str(data.get("end", "over")), idle_node_s=idle_node_s))
            continue
        if before is not None:
            found.append(replace(before, until_s=at_s, end=MOVED))
        kept[job] = Kept(job, _nodes(data.get("nodes")), at_s, leaving=_nodes(data.get("leaving")))
    return sorted([*found, *kept.values()], key=lambda earmark: earmark.since_s)


def _nodes(value: Any) -> tuple[str, ...]:
    return tuple(expand(value)) if isinstance(value, str) and value else tuple(value or ())
