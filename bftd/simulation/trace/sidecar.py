"""The JSON file beside a trace, with the facts that the rows do not hold."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Sidecar()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TraceError(f"{path} must hold an object with some of {', '.join(_KEYS)}")
    if unknown := [key for key in data if key not in _KEYS]:
        raise TraceError(f"{path}: unknown field {unknown[0]!r}: there are {', '.join(_KEYS)}")
    rows = _number(path, data, "rows")
    return Sidecar(
        nodes=_nodes(path, data.get("nodes")),
        start=_text(path, data, "start"),
        duration_s=_number(path, data, "duration_s"),
        poll_interval_s=_number(path, data, "poll_interval_s"),
        source=_text(path, data, "source") or _text(path, data, "system"),
        notes=_notes(path, data.get("notes", {})),
        rows=None if rows is None else int(rows),
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
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}") from None


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


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


def _number(path: Path, data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise TraceError(f"{path}: {key} must be a number of 0 or more, not {value!r}")
    return value


def _text(path: Path, data: dict[str, Any], key: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise TraceError(f"{path}: {key} must be a text, not {value!r}")
    return value


def _notes(path: Path, value: Any) -> dict[str, int]:
    whole = isinstance(value, dict) and all(type(count) is int for count in value.values())
    if not whole:
        raise TraceError(f"{path}: notes must be an object of whole numbers")
    return dict(value)
