"""The JSON file beside a trace, with the facts that the rows do not hold."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bftd.base.files import contents, decoded, replacing
from bftd.protocol.fields import Fields
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.names import check, listed

_KEYS = ("system", "source", "nodes", "start", "duration_s", "poll_interval_s", "rows", "notes")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The description of a trace; fields missing in the file are None. `nodes` are all nodes, ever idle or not."""

    nodes: tuple[str, ...] | None = None
    start: str = ""
    duration_s: float | None = None
    poll_interval_s: float | None = None
    source: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)
    rows: int | None = None


def path_of(trace: Path) -> Path:
    """Return the path of a trace's description: T.json for T.csv.gz and for T.csv."""
    for suffix in (".csv.gz", ".csv"):
        if trace.name.endswith(suffix):
            return trace.with_name(trace.name.removesuffix(suffix) + ".json")
    raise TraceError(f"{trace}: a trace is a file .csv or .csv.gz")


def read(path: Path) -> Sidecar:
    """Read a description; a missing file gives an empty one. Raise TraceError for fields of a wrong type."""
    if not os.path.exists(path):  # never raises
        return Sidecar()
    data = decoded(contents(path, TraceError), str(path), TraceError)
    told = Fields(data, str(path), TraceError)
    told.only(_KEYS)
    notes = told.nested("notes")
    return Sidecar(
        nodes=_nodes(path, data.get("nodes")),
        start=told.text("start", ""),
        duration_s=told.number("duration_s", None, maximum=math.inf),
        poll_interval_s=told.number("poll_interval_s", None),
        source=told.text("source", "") or told.text("system", ""),
        notes={name: notes.whole(name) for name in data["notes"]} if notes else {},
        rows=told.whole("rows", None),
    )


def write(path: Path, sidecar: Sidecar) -> None:
    """Replace the file atomically: a reader sees the complete old or new one."""
    data: dict[str, Any] = {
        "source": sidecar.source,
        "nodes": _folded(sidecar.nodes),
        "start": sidecar.start,
        "duration_s": sidecar.duration_s,
        "poll_interval_s": sidecar.poll_interval_s,
        "rows": sidecar.rows,
        "notes": dict(sidecar.notes),
    }
    text = json.dumps({key: value for key, value in data.items() if value not in (None, "", {})}, indent=1)
    replace_file(path, text.encode() + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by `content` with one rename; raise TraceError if that fails."""
    try:
        with replacing(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}") from None


def _folded(nodes: tuple[str, ...] | None) -> Any:
    """Return the shortest of a count, a node set and a list that reads back as the same names in the same order."""
    from slurm_plugin.nodeset import fold

    if nodes is None:
        return None
    if nodes == tuple(map(str, range(len(nodes)))):
        return len(nodes)
    if not any(name.isdecimal() for name in nodes):
        folded = fold(nodes)
        if tuple(listed(folded)) == nodes:
            return folded
    return list(nodes)


def _nodes(path: Path, value: Any) -> tuple[str, ...] | None:
    """Return names from a count (they are 0, 1, ...), a node set or a list."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10_000_000:
        return tuple(map(str, range(value)))
    try:
        names = listed(value) if isinstance(value, str) else value
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            check(names)
            if len(set(names)) == len(names):
                return tuple(names)
    except TraceError as error:
        raise TraceError(f"{path}: nodes: {error}") from None
    raise TraceError(f"{path}: nodes must be their number, a node set, or a list of different names")
