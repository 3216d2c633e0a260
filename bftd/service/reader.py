"""The ledger's history read in threads of its own, beside the daemon that writes it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bftd.errors import BftError, LedgerError

# A query that would read most of a large ledger is ended; one answer holds no more, whatever its limit.
QUERY_S = 5.0
ANSWER_BYTES_MOST = 4 * 2**20

_STEPS = 10_000  # of SQLite, about a millisecond, between two looks at the clock

_EVENT = ("rowid", "at_s", "kind", "trainer", "node")


class TooSlow(BftError):
    """A query took longer than anybody should wait."""


class Reader:
    """Queries of the ledger at `path`; each opens the file for itself, so that any thread may ask."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    def events(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Events with a rowid above `after`, oldest first; those of `trainers` only, where they are given.

        There may be fewer than `limit` although more follow: who wants all asks on behind the last until none comes.
        """
        rows = self._events(after, limit, trainers)
        return [dict(zip(_EVENT, row[:-1], strict=True)) | {"data": json.loads(row[-1])} for row in rows]

    def events_json(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> bytes:
        """The same as the JSON of an answer; what stands in the ledger as JSON is taken as it is."""
        rows = self._events(after, limit, trainers)
        events = (f'{json.dumps(dict(zip(_EVENT, row[:-1], strict=True)))[:-1]}, "data": {row[-1]}}}' for row in rows)
        return f'{{"events": [{", ".join(events)}]}}'.encode()

    def _events(self, after: int, limit: int, trainers: Sequence[str] | None) -> list[tuple[Any, ...]]:
        values: list[Any]
        if trainers is None:
            query, values = "SELECT {} FROM events WHERE rowid > ? ORDER BY rowid LIMIT ?", [after, limit]
        else:
            # each trainer's first ones by the index of trainers: in order of time most rows would be of others
            query = (
                "SELECT {} FROM events WHERE rowid IN (SELECT e.rowid FROM json_each(?) AS own "
                "JOIN events AS e ON e.trainer = own.value AND e.rowid > ? ORDER BY e.rowid LIMIT ?) ORDER BY rowid"
            )
            values = [json.dumps(list(trainers)), after, limit]
        return self._rows(query.format("rowid, at_s, kind, trainer, node, data"), values)

    def before(self, since_s: float) -> int:
        """The number of the last event before a time; 0 where there is none."""
        with self.opened() as db:
            (low, high) = db.execute("SELECT ifnull(min(rowid) - 1, 0), ifnull(max(rowid), 0) FROM events").fetchone()
            while low < high:  # rows are in the order of time, so that those before it are not read
                middle = (low + high) // 2
                row = db.execute("SELECT at_s FROM events WHERE rowid > ? ORDER BY rowid LIMIT 1", (middle,)).fetchone()
                low, high = (middle + 1, high) if row and row[0] < since_s else (low, middle)
        return int(low)

    def decisions(self, trainer: str, limit: int) -> list[dict[str, Any]]:
        """The last decisions about one trainer, oldest first: each as a sentence and, if it has it, as data."""
        rows = self._rows(
            "SELECT at_s, data FROM events WHERE trainer = ? AND kind = 'decision' ORDER BY rowid DESC LIMIT ?",
            [trainer, limit],
        )
        return [{"at_s": at_s} | json.loads(data) for at_s, data in reversed(rows)]

    def owner(self, trainer: str) -> str | None:
        """Whose trainer an id was last, None where the ledger does not say."""
        rows = self._rows(
            "SELECT data FROM events WHERE trainer = ? AND kind = 'registered' ORDER BY rowid DESC LIMIT 1", [trainer]
        )
        return str(json.loads(rows[0][0])["user"]) if rows else None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The ledger to be read, for QUERY_S at most; raises TooSlow where that is not enough, and LedgerError."""
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as db:
                db.set_progress_handler(_ender(), _STEPS)
                yield db
        except sqlite3.Error as error:
            if "interrupt" not in str(error):
                raise LedgerError(f"the ledger {self.path} cannot be read ({error})") from None
            raise TooSlow(f"the ledger was read for {QUERY_S:g} s without an end: ask for less") from None

    def _rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows, as far as their data (the last column) fit into one answer; at least one."""
        found: list[tuple[Any, ...]] = []
        size = 0
        with self.opened() as db:
            for row in db.execute(query, values):
                size += len(row[-1])
                if found and size > ANSWER_BYTES_MOST:
                    break
                found.append(row)
        return found


def _ender() -> Callable[[], bool]:
    """Ends a query once its time is over."""
    end_s = time.monotonic() + QUERY_S
    return lambda: time.monotonic() > end_s
