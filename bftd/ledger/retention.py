"""Upkeep of the ledger while the daemon runs: old events go, and the file shrinks, in steps of a few milliseconds.

Rows are numbered in the order of time, so that the oldest are found without an index. Data that must survive the daemon
is in other tables and never goes.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

from bftd.base.format import minute

log = logging.getLogger("bftd")

# Events are kept for a month: long enough to explain last week's job, short enough for a small file.
KEEP_EVENTS_S = 30 * 86400.0
# The most events that one step deletes: a few milliseconds. If more came since the last step, twice that number.
BATCH = 500
# The most pages that one step hands back to the file system.
VACUUM_PAGES = 100
# Free pages up to this share of the file are kept for the next rows.
SPARE_SHARE = 0.1
# The log beside the file counts up to this share of the ledger's maximum size: a reader that holds the log must not
# make us drop more events than that.
LOG_SHARE = 0.5
# The log is written back at 16 MB. If it is this long, a reader elsewhere keeps it so.
LONG_LOG_BYTES = 64 * 2**20
# After events were dropped because of the size, the ledger counts as full for this long.
FULL_FOR_S = 86400.0


class Retention:
    """The upkeep of one open ledger; `due` says whether `step` has anything to do."""

    def __init__(self, db: sqlite3.Connection, path: Path, max_bytes: int) -> None:
        self._db = db
        self._log_path = f"{path}-wal"
        self._max_bytes = max_bytes
        self._page_bytes = self._number("page_size")
        self._last_row = self._rows_so_far()
        self._batch = BATCH
        self._dropped_s: float | None = None
        self._log_is_long = False
        self._look()

    def shown(self) -> dict[str, Any]:
        """Return the size at the last look, and whether events are dropped for it before they expire."""
        return {
            "bytes": self._pages * self._page_bytes + self._log_bytes,
            "max_bytes": self._max_bytes,
            "oldest_event_s": self._oldest_s,
            "full": self._dropped_s is not None,
        }

    def due(self, now_s: float) -> bool:
        """Look at the file and return whether anything is to be deleted or handed back."""
        self._look()
        rows = self._rows_so_far()
        self._batch, self._last_row = max(BATCH, 2 * (rows - self._last_row)), rows
        if self._dropped_s is not None and not 0.0 <= now_s - self._dropped_s < FULL_FOR_S:
            self._dropped_s = None
        return self._expired(now_s) or self._too_large or self._spare_pages > 0

    def step(self, now_s: float) -> None:
        """Delete some of the oldest events that are to go, or hand back some pages; in the caller's transaction."""
        if self._expired(now_s):
            self._db.execute(
                "DELETE FROM events WHERE rowid <= (SELECT max(rowid) FROM "
                "(SELECT rowid, at_s FROM events ORDER BY rowid LIMIT ?) WHERE at_s < ?)",
                (self._batch, now_s - KEEP_EVENTS_S),
            )
        elif self._too_large and self._oldest_s is not None:
            self._db.execute(
                "DELETE FROM events WHERE rowid <= (SELECT max(rowid) FROM "
                "(SELECT rowid FROM events ORDER BY rowid LIMIT ?))",
                (self._batch,),
            )
            self._log_full(now_s)
        elif self._spare_pages > 0:
            for _ in range(min(VACUUM_PAGES, self._spare_pages)):
                self._db.execute("PRAGMA incremental_vacuum(1)")  # Python's module takes one step, which is one page

    def _look(self) -> None:
        self._pages = self._number("page_count")
        self._free_pages = self._number("freelist_count")
        try:
            self._log_bytes = os.stat(self._log_path).st_size
        except OSError:
            self._log_bytes = 0
        oldest = self._db.execute("SELECT at_s FROM events ORDER BY rowid LIMIT 1").fetchone()
        self._oldest_s: float | None = oldest[0] if oldest else None
        self._log_long_wal()

    def _expired(self, now_s: float) -> bool:
        return self._oldest_s is not None and self._oldest_s < now_s - KEEP_EVENTS_S

    @property
    def _too_large(self) -> bool:
        most_bytes = (1.0 - SPARE_SHARE) * self._max_bytes - min(self._log_bytes, LOG_SHARE * self._max_bytes)
        return (self._pages - self._free_pages) * self._page_bytes > most_bytes

    @property
    def _spare_pages(self) -> int:
        return self._free_pages - int(SPARE_SHARE * self._pages) - VACUUM_PAGES

    def _number(self, pragma: str) -> int:
        return int(self._db.execute(f"PRAGMA {pragma}").fetchone()[0])

    def _rows_so_far(self) -> int:
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
        return int(found[0]) if found else 0

    def _log_full(self, now_s: float) -> None:
        if self._dropped_s is None:
            log.warning(
                "the ledger has reached [ledger] max_bytes, %s: its oldest events are dropped, those of %s first; "
                "a larger one would keep a month",
                f"{self._max_bytes:,}",
                minute(self._oldest_s),
            )
        self._dropped_s = now_s

    def _log_long_wal(self) -> None:
        is_long = self._log_bytes > LONG_LOG_BYTES
        if is_long and not self._log_is_long:
            log.warning("%s grows: another process reads the ledger without an end; find it with fuser", self._log_path)
        self._log_is_long = is_long
