"""The ledger: what must survive the daemon, in one SQLite file that belongs to one daemon at a time.

It holds every event with its data, the trainers and leases as of the last step, the counters (lease numbers,
node-seconds: never going back) and the settings of `bft tune`. One step is one transaction.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from bftd.core import decisions
from bftd.core.domain import Action, CancelPilot, Decided, Happened, Lease, LeaseChanged, SolverFailed, State, Trainer
from bftd.errors import LedgerError
from bftd.service import codec, schema

# Events are kept for a month: long enough to explain last week's job, short enough for a small file.
KEEP_EVENTS_S = 30 * 86400.0
# Give-backs that the percentiles of `bft status` look back on.
GIVE_BACKS = 10_000

# What decoding raises on JSON that is not as `save` wrote it.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

# What an event's row takes beside its data, in its table and its indexes.
_ROW_BYTES = 120
_WRITTEN = attrgetter(*(f.name for f in dataclasses.fields(Trainer) if f.name not in ("heard_s", "strays")))
_KEPT = tuple(field.name for field in dataclasses.fields(State) if field.metadata.get("kept"))


class Ledger:
    """An open ledger; a second daemon on the same file gets a LedgerError."""

    def __init__(self, path: str | os.PathLike[str], mode: str = "live") -> None:
        self.path = Path(path)
        # What this process has written so far: all bodies, and those of events, which stay.
        self.written_bytes = 0
        self.history_bytes = 0
        self._mode = mode
        self._lock = self._own()
        try:
            # SQLite gives the files beside it the same mode: what users' trainings report is not for everybody.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            # with WAL, NORMAL can lose the last steps when the machine dies, but never tears the file
            self._db.execute("PRAGMA synchronous=NORMAL")
            with self._decoding():
                self._migrate()
        except (OSError, sqlite3.Error) as error:
            self._lock_release()
            raise LedgerError(f"cannot use the ledger {self.path} ({error}): move it away to begin a new one") from None
        except LedgerError:
            self._lock_release()
            raise

    def close(self) -> None:
        """Close the file and let another daemon have it."""
        self._db.close()
        self._lock_release()

    def load(self, now_s: float) -> State:
        """The state as of the last step: trainers, leases and counters; the pool is yet to be seen.

        Drivers count as heard at `now_s`: nobody could reach a daemon that did not run.
        """
        with self._decoding():
            rows = self._db.execute("SELECT body FROM trainers ORDER BY arrived_s, id")
            trainers = [codec.decode(Trainer, json.loads(body) | {"heard_s": now_s}) for (body,) in rows]
            rows = self._db.execute("SELECT body FROM leases ORDER BY granted_s, id")
            leases = [
                codec.decode(Lease, json.loads(body) | {"observed": False, "missed_polls": 0, "missed_s": None})
                for (body,) in rows
            ]
            kept = {name: value for name in _KEPT if (value := self._meta(name, None)) is not None}
            return State(
                trainers={trainer.id: trainer for trainer in trainers},
                leases={lease.id: lease for lease in leases},
                **codec.decoded(State, kept),
            )

    def save(self, before: State, after: State, actions: Iterable[Action]) -> None:
        """Write one step: what it changed and what it did."""
        with self._transaction():
            self._save_changed("trainers", "arrived_s", before.trainers, after.trainers)
            self._save_changed("leases", "granted_s", before.leases, after.leases)
            for name in _KEPT:
                value = getattr(after, name)
                if value != getattr(before, name):
                    self._set_meta(name, codec.plain(value))
            rows = [(after.time_s, *_row(action)) for action in actions]
            self._db.executemany("INSERT INTO events (at_s, kind, trainer, node, data) VALUES (?, ?, ?, ?, ?)", rows)
            size = sum(len(row[-1]) + _ROW_BYTES for row in rows)
            self.history_bytes += size
            self.written_bytes += size

    def tuned(self) -> dict[str, Any]:
        """The settings that `bft tune` changed."""
        return self._meta_object("tuned")

    def set_tuned(self, settings: Mapping[str, Any]) -> None:
        """Keep settings of `bft tune` for the next start."""
        with self._transaction():
            self._set_meta("tuned", dict(settings))

    def kept(self, name: str) -> dict[str, Any]:
        """What `keep` wrote under a name last; empty where it never did."""
        return self._meta_object(f"kept.{name}")

    def keep(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep a JSON object that a restart goes on with."""
        with self._transaction():
            self._set_meta(f"kept.{name}", dict(data))

    def events(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Events with a rowid above `after`, oldest first; those of `trainers` only, where they are given."""
        only = "" if trainers is None else " AND trainer IN (SELECT value FROM json_each(?))"
        rows = self._db.execute(
            f"SELECT rowid, at_s, kind, trainer, node, data FROM events WHERE rowid > ?{only} ORDER BY rowid LIMIT ?",
            (after, limit) if trainers is None else (after, json.dumps(list(trainers)), limit),
        )
        names = ("rowid", "at_s", "kind", "trainer", "node")
        return [dict(zip(names, row[:-1], strict=True)) | {"data": json.loads(row[-1])} for row in rows]

    def decisions(self, trainer: str | None, limit: int) -> list[dict[str, Any]]:
        """The last decisions about one trainer, or about all, oldest first: each as a sentence and as data.

        Those that an older bftd wrote down are sentences only.
        """
        where = "kind = 'decision'" + (" AND trainer = ?" if trainer is not None else "")
        rows = self._db.execute(
            f"SELECT at_s, trainer, data FROM events WHERE {where} ORDER BY rowid DESC LIMIT ?",
            (limit,) if trainer is None else (trainer, limit),
        ).fetchall()
        return [{"at_s": at_s, "trainer": who} | json.loads(data) for at_s, who, data in reversed(rows)]

    def give_backs_s(self) -> list[float]:
        """Durations of the last give-backs in seconds, newest first."""
        rows = self._db.execute(
            "SELECT data FROM events WHERE kind = 'give_back' ORDER BY rowid DESC LIMIT ?", (GIVE_BACKS,)
        )
        return [float(json.loads(data)["duration_s"]) for (data,) in rows]

    def prune(self, now_s: float) -> None:
        """Drop events older than a month."""
        self._db.execute("DELETE FROM events WHERE at_s < ?", (now_s - KEEP_EVENTS_S,))

    def _own(self) -> int:
        """Take the file's lock, which the kernel gives back when the daemon dies."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"cannot open the ledger {self.path}: {error.strerror}; see [ledger] path") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            message = f"another bftd uses the ledger {self.path}: stop it, or set another [ledger] path"
            raise LedgerError(message) from None
        return lock

    def _lock_release(self) -> None:
        os.close(self._lock)

    def _migrate(self) -> None:
        version = schema.version_of(self._db)
        if version == 0:
            mode = f"INSERT INTO meta VALUES ('mode', '{json.dumps(self._mode)}');"
            self._db.executescript(f"BEGIN; {schema.TABLES} {mode} PRAGMA user_version={schema.VERSION}; COMMIT;")
        elif version > schema.VERSION:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}, this bftd writes {schema.VERSION}: "
                "use the bftd that wrote it, or move the file away"
            )
        written = self._meta("mode", "live")
        if written != self._mode:
            raise LedgerError(
                f"the ledger {self.path} is of a daemon in {written} mode and this one runs in {self._mode} mode: "
                "set another [ledger] path, or move the file away"
            )
        if 0 < version < schema.VERSION:
            with self._transaction():
                schema.upgrade(self._db, version)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            # repr: a KeyError's text alone says nothing, and no text of another program can make a second line
            raise LedgerError(
                f"the ledger {self.path} holds what no bftd wrote ({error!r}): move it away to begin a new one"
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _save_changed(self, table: str, order: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        # steps copy what they change, so an unchanged item is the same object
        if before is after:
            return
        changed = [item for id_, item in after.items() if (was := before.get(id_)) is not item and _differs(was, item)]
        rows = [(item.id, getattr(item, order), json.dumps(codec.encode(_lasting(item)))) for item in changed]
        self._db.executemany(f"INSERT OR REPLACE INTO {table} (id, {order}, body) VALUES (?, ?, ?)", rows)
        self.written_bytes += sum(len(row[-1]) for row in rows)
        self._db.executemany(f"DELETE FROM {table} WHERE id = ?", [(id_,) for id_ in before.keys() - after.keys()])

    def _meta(self, key: str, default: Any) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else default

    def _meta_object(self, key: str) -> dict[str, Any]:
        with self._decoding():
            value = self._meta(key, {})
            if not isinstance(value, dict):
                raise TypeError(f"{key} is no object")
            return value

    def _set_meta(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))


def _differs(before: Trainer | Lease | None, after: Trainer | Lease) -> bool:
    """Whether what lasts of an item is another than before; that a driver was heard of alone is not worth a write."""
    if not isinstance(before, Trainer) or not isinstance(after, Trainer):
        return True
    return any(one is not other and one != other for one, other in zip(_WRITTEN(before), _WRITTEN(after), strict=True))


def _lasting(item: Trainer | Lease) -> Trainer | Lease:
    """An item without what is not kept: a lease that no list names is given back all the same, so strays may go."""
    return dataclasses.replace(item, strays=()) if isinstance(item, Trainer) and item.strays else item


def _row(action: Action) -> tuple[str, str | None, str | None, str]:
    """Kind, trainer, node and data of an action as the events table holds them."""
    if isinstance(action, Decided):
        told = {"text": action.text, "decision": decisions.to_json(action.decision)}
        return "decision", action.trainer, None, json.dumps(told)
    if isinstance(action, Happened):
        return action.kind, action.trainer, action.node, json.dumps(dict(action.data))
    if isinstance(action, SolverFailed):
        return "solver_failed", None, None, json.dumps({"error": action.error})
    if isinstance(action, CancelPilot):
        return "cancel", action.trainer, None, json.dumps({"job_id": action.job_id, "reason": action.reason})
    assert isinstance(action, LeaseChanged)
    lease = action.lease
    data = {"lease": lease.id, "reason": action.reason, "vacate": lease.vacate, "job_id": lease.job_id}
    return action.kind, lease.trainer, lease.node, json.dumps(data)
