"""The files of communication tables: one of the user, and one of the site that all users read."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sizing.base.errors import UsageError
from sizing.cells.comm.table import CommTables, Table, parse, to_json

NAME = "comm.json"
_MOST_BYTES = 16 * 2**20


def own_path() -> Path:
    """Return the path of the user's file."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "bft" / NAME


def read(path: Path) -> tuple[Table, ...]:
    """Read the tables in a file, none if it does not exist; raises UsageError if it cannot be read."""
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
    """Load the tables of several files; later files take precedence for the same kind and link."""
    return CommTables([table for path in paths for table in read(path)], extrapolate=extrapolate)


def of_site(folder: Path) -> CommTables:
    """Load the tables in the folder of a site's files, and over them the user's own."""
    return load(folder / NAME, own_path())


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding tables: those that were replaced, and those that stayed because they reach further."""

    replaced: tuple[Table, ...] = ()
    stayed: tuple[Table, ...] = ()


def add(path: Path, tables: Sequence[Table], *, force: bool = False) -> Added:
    """Add tables to a file, under a lock against other writers. Raises UsageError.

    A new table that does not cover all sizes of the existing one is left out, unless `force`.
    """
    folder = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # some file systems (NFS) have no locks for folders: go on without
            fcntl.flock(folder, fcntl.LOCK_EX)
        there = load(path)
        replaced: list[Table] = []
        stayed: list[Table] = []
        for each in tables:  # also of two new tables of one link, the one that reaches further is kept
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
    """Write a file atomically and create its folder; raises UsageError if that fails."""
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
