"""Write-back of SQLite's log into the ledger beside the loop: it waits for the disk, which give-backs must not do."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

# A busy site writes a hundred pages a second; if the log has become much longer, the loop itself writes it back.
EVERY_S = 5.0


class Checkpoints:
    """One thread with a connection of its own, for one open ledger."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None
        self._next_s = time.monotonic() + EVERY_S

    def begin(self) -> None:
        """Start to write the log back if it is time and the last write-back has ended."""
        if time.monotonic() < self._next_s or (self._last is not None and not self._last.done()):
            return
        self._next_s = time.monotonic() + EVERY_S
        self._last = self._thread.submit(self._write_back)

    def close(self) -> None:
        """Wait for a running write-back and start no more."""
        self._thread.shutdown(wait=True)

    def _write_back(self) -> None:
        # the next step that is written reports a disk that accepts no writes
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
