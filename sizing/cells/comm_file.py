"""Where communication tables are kept: a file of the user's, and one of the site's that all read."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sizing.cells.comm import CommTables, Table, parse, to_json
from sizing.errors import UsageError

NAME = "comm.json"
_MOST_BYTES = 16 * 2**20


def own_path() -> Path:
    """The user's file."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "bft" / NAME


def read(path: Path) -> tuple[Table, ...]:
    """The tables in a file, none where there is no such; raises UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB: no file of tables is so large; move it away")
    try:
        return parse(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): move it away and import again") from None
    except UsageError as error:
        raise UsageError(f"{error}; mend the file, or move it away and import again") from None


def load(*paths: Path, extrapolate: bool = False) -> CommTables:
    """The tables of several files, of which a later one counts for a link that is in both."""
    return CommTables([table for path in paths for table in read(path)], extrapolate=extrapolate)


@dataclass(frozen=True, slots=True)
class Added:
    """What adding tables came to: those that they replaced, and those that stayed as they reach further."""

    replaced: tuple[Table, ...] = ()
    stayed: tuple[Table, ...] = ()


def add(path: Path, tables: Sequence[Table], *, force: bool = False) -> Added:
    """Add tables to a file, alone if others do so too. Raises UsageError.

    One that does not reach all sizes of the one that is there is left out, unless `force`.
    """
    folder = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # file systems without locks for folders (NFS): as well as can be
            fcntl.flock(folder, fcntl.LOCK_EX)
        there = load(path)
        replaced: list[Table] = []
        stayed: list[Table] = []
        for each in tables:  # of two of a link at once, too, the one that reaches further is kept
            old = next((one for one in there.tables if one.key == each.key), None)
            if old is None or force or each.reaches(old):
                replaced += there.add([each])
            else:
                stayed.append(old)
        if len(stayed) < len(tables):
            save(path, there.tables)
        return Added(tuple(replaced), tuple(stayed))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if folder >= 0:
            os.close(folder)


def save(path: Path, tables: Sequence[Table]) -> None:
    """Write a file whole or not at all, with its folder; raises UsageError where that may not be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(to_json(tables), indent=1) + "\n")
                os.fchmod(file.fileno(), 0o644)
            os.replace(name, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
