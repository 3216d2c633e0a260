"""Queries of the ledger's history in separate threads, beside the daemon that writes it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bftd.base.errors import BftError, LedgerError

# A query that would read most of a large ledger is ended; one answer holds no more than this, whatever its limit.
QUERY_S = 5.0
ANSWER_BYTES_MOST = 4 * 2**20

_STEPS = 10_000  # of SQLite, about a millisecond, between two checks of the clock

_EVENT = ("rowid", "at_s", "kind", "trainer", "node")


class TooSlow(BftError):
    """A query that took too long."""


class LedgerEvent(NamedTuple):
    """An event as the ledger has it."""

    rowid: int
    at_s: float
    trainer: str | None
    data: Any


class LedgerReader:
    """Queries of the ledger at `path`; each opens the file itself, so that any thread may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    def events(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return events with a rowid above `after`, oldest first; only those of `trainers` if given.

        There may be fewer than `limit` although more follow: to get all, repeat after the last one until none comes.
        """
        rows = self._events(after, limit, trainers)
        return [dict(zip(_EVENT, row[:-1], strict=True)) | {"data": json.loads(row[-1])} for row in rows]

    def events_json(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> bytes:
        """Return the same as the JSON of an answer; JSON in the ledger is passed on unchanged."""
        rows = self._events(after, limit, trainers)
        events = (f'{json.dumps(dict(zip(_EVENT, row[:-1], strict=True)))[:-1]}, "data": {row[-1]}}}' for row in rows)
        return f'{{"events": [{", ".join(events)}]}}'.encode()

    def _events(self, after: int, limit: int, trainers: Sequence[str] | None) -> list[tuple[Any, ...]]:
        values: list[Any]
        if trainers is None:
            query, values = "SELECT {} FROM events WHERE rowid > ? ORDER BY rowid LIMIT ?", [after, limit]
        else:
            # each trainer's first ones by the index of trainers: in order of time most rows would belong to others
            query = (
                "SELECT {} FROM events WHERE rowid IN (SELECT e.rowid FROM json_each(?) AS own "
                "JOIN events AS e ON e.trainer = own.value AND e.rowid > ? ORDER BY e.rowid LIMIT ?) ORDER BY rowid"
            )
            values = [json.dumps(list(trainers)), after, limit]
        return self._rows(query.format("rowid, at_s, kind, trainer, node, data"), values)

    def before(self, since_s: float) -> int:
        """Return the number of the last event before a time; 0 if there is none."""
        with self.opened() as db:
            (low, high) = db.execute("SELECT ifnull(min(rowid) - 1, 0), ifnull(max(rowid), 0) FROM events").fetchone()
            while low < high:  # rows are in the order of time: those before it are not read
                middle = (low + high) // 2
                row = db.execute("SELECT at_s FROM events WHERE rowid > ? ORDER BY rowid LIMIT 1", (middle,)).fetchone()
                low, high = (middle + 1, high) if row and row[0] < since_s else (low, middle)
        return int(low)

    def decisions(self, trainer: str, limit: int) -> list[dict[str, Any]]:
        """Return the last decisions about one trainer, oldest first: each as a sentence and, if recorded, as data."""
        rows = self._rows(
            "SELECT at_s, data FROM events WHERE trainer = ? AND kind = 'decision' ORDER BY rowid DESC LIMIT ?",
            [trainer, limit],
        )
        return [{"at_s": at_s} | json.loads(data) for at_s, data in reversed(rows)]

    def owner(self, trainer: str) -> str | None:
        """Return the last owner of a trainer id, None if the ledger has none."""
        rows = self._rows(
            "SELECT data FROM events WHERE trainer = ? AND kind = 'registered' ORDER BY rowid DESC LIMIT 1", [trainer]
        )
        return str(json.loads(rows[0][0])["user"]) if rows else None

    def newest(self, kind: str, since_s: float, *, before: bool = False) -> tuple[list[LedgerEvent], bool]:
        """Return the events of a kind since a time, oldest first, and whether those are all.

        With `before`, also the last one before that time. If they do not fit into one answer, the newest are returned.
        """
        query = "SELECT rowid, at_s, trainer, data FROM events WHERE kind = ? ORDER BY rowid DESC"
        rows = self._rows(query, [kind], lambda row: row[1] < since_s)
        older = "SELECT '' FROM events WHERE kind = ? AND rowid < ? LIMIT 1"
        whole = not rows or rows[-1][1] < since_s or not self._rows(older, [kind, rows[-1][0]])
        if rows and rows[-1][1] < since_s and not before:
            rows.pop()
        return [
            LedgerEvent(rowid, at_s, trainer, json.loads(data)) for rowid, at_s, trainer, data in reversed(rows)
        ], whole

    def last_before(self, rowid: int, at_s: float) -> float | None:
        """Return the time of the last event before row `rowid` that happened by `at_s`; None if there is none."""
        rows = self._rows(
            "SELECT at_s, '' FROM events WHERE rowid < ? AND at_s <= ? ORDER BY rowid DESC LIMIT 1", [rowid, at_s]
        )
        return float(rows[0][0]) if rows else None

    def samples_at(self, trainer: str, at_s: float) -> float | None:
        """Return the samples in a trainer's last report by `at_s`; None if it had reported none."""
        rows = self._rows(
            "SELECT data FROM events WHERE trainer = ? AND kind = 'progress' AND at_s <= ? ORDER BY rowid DESC LIMIT 1",
            [trainer, at_s],
        )
        return float(json.loads(rows[0][0]).get("samples") or 0.0) if rows else None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Open the ledger for reading, for QUERY_S at most; raises TooSlow if that is not enough, and LedgerError."""
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as db:
                db.set_progress_handler(_ender(), _STEPS)
                yield db
        except sqlite3.Error as error:
            if "interrupt" not in str(error):
                raise LedgerError(f"the ledger {self.path} cannot be read ({error})") from None
            raise TooSlow(f"the ledger was read for {QUERY_S:g} s without an end: ask for less") from None

    def rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return all rows of a query whose last column is a text, as far as they fit into one answer."""
        return self._rows(query, values)

    def _rows(
        self, query: str, values: Sequence[Any], last: Callable[[tuple[Any, ...]], bool] = lambda row: False
    ) -> list[tuple[Any, ...]]:
        """Return all rows up to the `last`, as far as their data (last column) fit into one answer; at least one."""
        found: list[tuple[Any, ...]] = []
        size = 0
        with self.opened() as db:
            for row in db.execute(query, values):
                size += len(row[-1])
                if found and size > ANSWER_BYTES_MOST:
                    break
                found.append(row)
                if last(row):
                    break
        return found


def _ender() -> Callable[[], bool]:
    """Return a handler that ends a query after QUERY_S."""
    end_s = time.monotonic() + QUERY_S
    return lambda: time.monotonic() > end_s
