"""A ledger that an older bftd wrote, made one of this version: copied into a new file that then takes its place.

The copy has what a ledger could not be given in place without a rewrite of all of it: pages that can be handed back
one by one (auto_vacuum), and none of the rows that have expired. So the time it takes is bounded, however large the old
file has become. Until the new file is whole, the old one is as it was.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from bftd.errors import LedgerError
from bftd.service import schema
from bftd.service.thinning import EVERY_S

# The newest rows that are looked at: about as many as the default size of a ledger holds.
MOST_EVENTS = 4_000_000
_BATCH = 100_000
# The first version with usage by hour.
_USAGE_SINCE = 3

# Of the progress of a trainer only the last in each minute, as it is written today.
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
    sqlite3.Error, OSError or what a damaged row raises; then the ledger is as it was.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
            db.execute("PRAGMA journal_mode=OFF")  # a copy that is cut short is thrown away
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
    # numbers never come back: who reads on behind the last one it saw must not miss any
    db.execute("DELETE FROM sqlite_sequence")
    db.execute("INSERT INTO sqlite_sequence SELECT * FROM old.sqlite_sequence")
    db.execute(f"PRAGMA user_version={schema.VERSION}")
    db.execute("COMMIT")


def _batches(db: sqlite3.Connection, keep_s: float) -> Iterator[tuple[int, int]]:
    """Ranges of row numbers that hold all events to keep."""
    newest = db.execute("SELECT rowid, at_s FROM old.events ORDER BY rowid DESC LIMIT 1").fetchone()
    if newest is None:
        return
    last, since_s = newest[0], newest[1] - keep_s
    low, high = max(0, last - MOST_EVENTS), last
    while low < high:  # rows are in the order of time, so that the first to keep is found without reading those before
        middle = (low + high) // 2
        (at_s,) = db.execute("SELECT at_s FROM old.events WHERE rowid > ? ORDER BY rowid LIMIT 1", (middle,)).fetchone()
        low, high = (middle + 1, high) if at_s < since_s else (low, middle)
    for after in range(low, last, _BATCH):
        yield after, min(last, after + _BATCH)


def _settle(path: Path) -> None:
    """Leave no log of the old file behind: beside the new one it would be taken for the new one's."""
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
