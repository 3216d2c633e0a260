"""Traces on disk: `time_s,node,idle` as .csv or .csv.gz, with a JSON description of the same stem beside it."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from bftd.whatif.trace import members, names, sidecar, table
from bftd.whatif.trace.checks import check
from bftd.whatif.trace.errors import TraceError
from bftd.whatif.trace.model import Trace


def read(path: str | Path) -> Trace:
    """Read a trace and believe nothing: raises TraceError, with file and line, for whatever cannot be true.

    Without a description the nodes are those that the rows name, and the trace ends with its last row.
    """
    trace = load(Path(path))
    if trace.duration_s <= 0:
        raise TraceError(f"{path} lasts 0 s: put its duration_s in {sidecar.path_of(Path(path)).name}")
    return trace


def load(path: Path) -> Trace:
    """Read a trace that may still be a single moment, as one that is being recorded is at first."""
    beside = sidecar.path_of(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    # after the rows: while a trace is recorded, its description is always the newer one
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
    """Write a trace and its description, each at once, and return it with the digest of its file.

    Raises TraceError for a trace that `read` would refuse, and where the files cannot be written.
    """
    path = Path(path)
    beside = sidecar.path_of(path)
    if not len(trace.times_s):
        raise TraceError(f"no node is ever idle: there is nothing to write to {path}")
    names.check(trace.nodes)
    check(trace.nodes, trace.times_s, trace.node, trace.idle, trace.duration_s, str(path))
    text = table.written(trace.nodes, trace.times_s, trace.node, trace.idle)
    # without a time stamp, so that the same trace is the same file
    raw = gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text
    sidecar.replace_file(path, raw)
    sidecar.write(beside, describe(trace, rows=len(trace.times_s)))
    return replace(trace, file_sha256=hashlib.sha256(raw).hexdigest())


def describe(trace: Trace, rows: int | None) -> sidecar.Sidecar:
    """The description of a trace; `rows` is None where rows are still being added."""
    return sidecar.Sidecar(
        trace.nodes, trace.start, trace.duration_s, trace.poll_interval_s, trace.source, trace.notes, rows
    )


def unpacked(path: Path, raw: bytes) -> bytes:
    """The text of a trace file; raises TraceError for a gzip file that is not whole."""
    if not path.name.endswith(".gz"):
        return raw
    text, end = members.whole(raw)
    try:
        return text + gzip.decompress(raw[end:])  # raises for what is left: no whole member
    except EOFError:
        raise TraceError(f"{path} is a gzip file that is cut short: copy it again") from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"{path} is not a whole gzip file: {error}") from None


def _in_order(found: tuple[str, ...]) -> tuple[str, ...]:
    """Numbered nodes by number, others by name."""
    return tuple(sorted(found, key=int)) if all(name.isdecimal() for name in found) else found
