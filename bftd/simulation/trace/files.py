"""Traces on disk: `time_s,node,idle` as .csv or .csv.gz, with a JSON description of the same stem beside it."""

from __future__ import annotations

import gzip
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from bftd.simulation.trace import names, sidecar, table
from bftd.simulation.trace.checks import check
from bftd.simulation.trace.errors import TraceError, unpacking
from bftd.simulation.trace.model import Trace
from bftd.simulation.trace.recording import gzip_members


def read(path: str | Path) -> Trace:
    """Read and check a trace; raise TraceError, with file and line, for whatever cannot be true.

    Without a description the nodes are those that the rows name, and the trace ends with its last row.
    """
    trace = load(Path(path))
    if trace.duration_s <= 0:
        raise TraceError(f"{path} lasts 0 s: put its duration_s in {sidecar.path_of(Path(path)).name}")
    return trace


def load(path: Path) -> Trace:
    """Read a trace whose duration may be 0, as it is at the start of a recording."""
    beside = sidecar.path_of(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    # read after the rows: while a trace is being recorded, its description is always newer than the rows
    described = sidecar.read(beside)
    rows = table.read(unpacked(path, raw), str(path))
    if described.rows is not None and described.rows != len(rows.times_s):
        raise TraceError(
            f"{path} has {len(rows.times_s):,} rows, its JSON tells of {described.rows:,}: is it cut short?"
        )
    nodes = described.nodes if described.nodes is not None else _in_order(rows.names)
    index = {name: place for place, name in enumerate(nodes)}
    places = np.array([index.get(name, -1) for name in rows.names], dtype=np.int32)
    node = places[rows.node]
    if (node < 0).any():
        row = int(np.argmin(node >= 0))
        name = rows.names[int(rows.node[row])]
        raise TraceError(f"{path}, line {row + table.FIRST_LINE}: its JSON lists no node {name}")
    last_s = float(np.max(rows.times_s))
    duration_s = last_s if described.duration_s is None else float(described.duration_s)
    check(nodes, rows.times_s, node, rows.idle, duration_s, str(path))
    return Trace(
        nodes=nodes,
        times_s=rows.times_s,
        node=node,
        idle=rows.idle,
        duration_s=duration_s,
        start=described.start,
        poll_interval_s=described.poll_interval_s,
        source=described.source,
        notes=described.notes,
        file_sha256=hashlib.sha256(raw).hexdigest(),
    )


def write(trace: Trace, path: str | Path) -> Trace:
    """Write a trace and its description, each atomically, and return the trace with the digest of its file.

    Raise TraceError for a trace that `read` would refuse, or if the files cannot be written.
    """
    path = Path(path)
    beside = sidecar.path_of(path)
    if not len(trace.times_s):
        raise TraceError(f"no node is ever idle: there is nothing to write to {path}")
    names.check(trace.nodes)
    check(trace.nodes, trace.times_s, trace.node, trace.idle, trace.duration_s, str(path))
    text = table.written(trace.nodes, trace.times_s, trace.node, trace.idle)
    # no time stamp, so that the same trace gives the same file
    raw = gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text
    sidecar.replace_file(path, raw)
    sidecar.write(beside, describe(trace, rows=len(trace.times_s)))
    return replace(trace, file_sha256=hashlib.sha256(raw).hexdigest())


def describe(trace: Trace, rows: int | None) -> sidecar.Sidecar:
    """Return the description of a trace; `rows` is None while rows are still being added."""
    return sidecar.Sidecar(
        trace.nodes, trace.start, trace.duration_s, trace.poll_interval_s, trace.source, trace.notes, rows
    )


def unpacked(path: Path, raw: bytes) -> bytes:
    """Return the text of a trace file; raise TraceError for an incomplete gzip file."""
    if not path.name.endswith(".gz"):
        return raw
    with unpacking(path):
        text, end = gzip_members.whole(raw)
        with gzip.GzipFile(fileobj=io.BytesIO(raw[end:])) as rest:
            while rest.read(1 << 20):  # raises if a partial member is left
                pass
        return text


def _in_order(found: tuple[str, ...]) -> tuple[str, ...]:
    """Sort numbered nodes by number; other names are sorted already."""
    return tuple(sorted(found, key=int)) if all(name.isdecimal() for name in found) else found
