"""The upgrade of a ledger that an older bftd wrote: it is copied into a new file, which then replaces it.

The copy has two properties that a ledger could get in place only by a complete rewrite: pages that can be freed one by
one (auto_vacuum), and no expired rows. So the time it takes is bounded, however large the old file has become. Until
the new file is complete, the old one stays as it was.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from bftd.base.errors import LedgerError
from bftd.ledger import schema
from bftd.ledger.downsampling import EVERY_S

# The most rows that are looked at, the newest first: about as many as the default size of a ledger holds.
MOST_EVENTS = 4_000_000
_BATCH = 100_000
# The first version with usage by hour.
_USAGE_SINCE = 3

# Of a trainer's progress only the last row in each minute is copied, as it is written today.
_COPY = f"""
INSERT INTO events SELECT rowid, at_s, kind, trainer, node, data FROM old.events
WHERE rowid > :after AND rowid <= :up_to AND (kind != 'progress' OR rowid IN (
    SELECT max(rowid) FROM old.events WHERE rowid > :after AND rowid <= :up_to AND kind = 'progress'
    GROUP BY trainer, CAST(at_s / {EVERY_S:.0f} AS INTEGER)
))
"""


def migrate(path: Path, version: int, keep_s: float, working: Callable[[], None]) -> None:
    """Replace the ledger of an older `version` at `path`, which nobody else may have open.

    Events of the last `keep_s` seconds are kept, counted from the newest. `working` is called every few seconds. Raises
    sqlite3.Error, OSError or the error of a damaged row; the ledger is then unchanged.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
            db.execute("PRAGMA journal_mode=OFF")  # an incomplete copy is thrown away
            db.execute("ATTACH ? AS old", (str(path),))
            _copy(db, version, keep_s, working)
            db.execute("DETACH old")
        _settle(path)
        os.replace(new, path)
        _sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def _copy(db: sqlite3.Connection, version: int, keep_s: float, working: Callable[[], None]) -> None:
    db.execute("BEGIN")
    for statement in filter(str.strip, schema.TABLES.split(";")):
        db.execute(statement)
    for table in ("meta", "trainers", "leases", *(("usage",) if version >= _USAGE_SINCE else ())):
        db.execute(f"INSERT INTO {table} SELECT * FROM old.{table}")
    schema.upgrade(db, version)
    for after, up_to in _batches(db, keep_s):
        db.execute(_COPY, {"after": after, "up_to": up_to})
        working()
    for statement in filter(str.strip, schema.INDICES.split(";")):
        db.execute(statement)
        working()
    # numbers are never used again: a client that reads on after the last number it saw must miss no event
    db.execute("DELETE FROM sqlite_sequence")
    db.execute("INSERT INTO sqlite_sequence SELECT * FROM old.sqlite_sequence")
    db.execute(f"PRAGMA user_version={schema.VERSION}")
    db.execute("COMMIT")


def _batches(db: sqlite3.Connection, keep_s: float) -> Iterator[tuple[int, int]]:
    """Yield ranges of row numbers that hold all events to keep."""
    newest = db.execute("SELECT rowid, at_s FROM old.events ORDER BY rowid DESC LIMIT 1").fetchone()
    if newest is None:
        return
    last, since_s = newest[0], newest[1] - keep_s
    low, high = max(0, last - MOST_EVENTS), last
    while low < high:  # rows are in the order of time: the first row to keep is found without reading the ones before
        middle = (low + high) // 2
        (at_s,) = db.execute("SELECT at_s FROM old.events WHERE rowid > ? ORDER BY rowid LIMIT 1", (middle,)).fetchone()
        low, high = (middle + 1, high) if at_s < since_s else (low, middle)
    for after in range(low, last, _BATCH):
        yield after, min(last, after + _BATCH)


def _settle(path: Path) -> None:
    """Leave no log of the old file behind: SQLite would take it for the new file's."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        (mode,) = old.execute("PRAGMA journal_mode=DELETE").fetchone()
    if mode != "delete":
        raise LedgerError(f"another process has the ledger {path} open: end it, so that the ledger can be upgraded")


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
