"""The ledger: everything that must survive the daemon, in one SQLite file that belongs to one daemon at a time.

It holds the events of a month with their data, the trainers and leases as of the last step, the counters (lease
numbers, node-seconds: never going back), usage by hour, user and account, and the settings of `bft tune`. One step is
one transaction.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from bftd.base import old_names
from bftd.base.errors import LedgerError, LedgerInUse
from bftd.config.keys import LedgerConfig
from bftd.core.model.domain import Action, Charged, Lease, State, Trainer
from bftd.ledger import codec, filesystem, rows, schema, usage
from bftd.ledger.downsampling import Thinning
from bftd.ledger.migration import migrate
from bftd.ledger.retention import KEEP_EVENTS_S, Retention
from bftd.ledger.rows import EventRow
from bftd.ledger.wal import Checkpoints

log = logging.getLogger("bftd")
_T = TypeVar("_T")

# The most give-backs that the percentiles of `bft status` are made of.
GIVE_BACKS = 10_000

# Errors of decoding JSON that `save` did not write.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

# Bytes of an event's row beside its data, in its table and its indexes.
_ROW_BYTES = 120
_WRITTEN = attrgetter(*(f.name for f in dataclasses.fields(Trainer) if f.name not in ("heard_s", "unknown_leases")))
# The longest wait for another program's write: nothing is served meanwhile.
_BUSY_S = 0.2
# The loop itself writes the log back into the file at a tenth of the ledger's size, within these bounds.
_LOG_PAGES = (100, 4_000)
_PAGE_BYTES = 4096
# The most events that are remembered, the newest ones, while the file cannot be written.
_MOST_OWED = 10_000
# The ledger keeps under this name the start of the host on which a daemon has it.
_HOST = "host"

_KEPT = tuple(field.name for field in dataclasses.fields(State) if field.metadata.get("kept"))


class Ledger:
    """An open ledger; a second daemon on the same file gets a LedgerError.

    `max_bytes` is the approximate limit of its file and the log beside it together. `working` is called from time to
    time while the ledger of an older bftd is upgraded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "live",
        max_bytes: int = LedgerConfig.max_bytes,
        working: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = Path(path)
        # Bytes that this process has written so far: of all bodies, and (history_bytes) of events, which stay, counted
        # as soon as they are owed.
        self.written_bytes = 0
        self.history_bytes = 0
        self.max_bytes = max_bytes
        self._mode = mode
        if kind := filesystem.network_type(self.path):
            raise LedgerError(
                f"the ledger {self.path} is on {kind}, which other hosts serve: set [ledger] path to a local disk, "
                "such as /var/lib/bftd"
            )
        self._lock = self._own()
        try:
            with self._decoding():
                self._db = self._opened(max_bytes, working)
            self._upkeep = Retention(self._db, self.path, max_bytes)
        except (OSError, sqlite3.Error) as error:
            os.close(self._lock)
            raise LedgerError(f"cannot use the ledger {self.path} ({error}): {filesystem.advice(error)}") from None
        except LedgerError:
            os.close(self._lock)
            raise
        self._thinning = Thinning()
        self._checkpoints = Checkpoints(self.path)
        self._owed: _Owed | None = None
        self._usage_hour = -1
        self._begun = False

    def close(self) -> None:
        """Close the file and let another daemon have it; writes that were owed are tried once more."""
        try:
            if self._owed:
                with self._transaction():
                    self._write(self._owed)
            self._write_held(float("inf"))
            if self._begun:
                self.keep(_HOST, {})
        except LedgerError as error:
            log.warning("%s", error)
        self._checkpoints.close()
        self._db.close()
        os.close(self._lock)

    @property
    def may_lack_steps(self) -> bool:
        """Whether the host went down while a daemon had this ledger: its last steps may not have been flushed."""
        boot = self.kept(_HOST).get("boot")
        return boot is not None and boot != filesystem.boot_id()

    def load(self, now_s: float) -> State:
        """Return the state as of the last step: trainers, leases and counters; the pool is yet to be seen.

        Drivers count as heard at `now_s`: nobody could reach a daemon that did not run.
        """
        with self._decoding():
            bodies = self._query("SELECT body FROM trainers ORDER BY arrived_s, id")
            trainers = [codec.decode(Trainer, json.loads(body) | {"heard_s": now_s}) for (body,) in bodies]
            bodies = self._query("SELECT body FROM leases ORDER BY granted_s, id")
            leases = [
                codec.decode(Lease, json.loads(body) | {"observed": False, "missed_polls": 0, "missed_s": None})
                for (body,) in bodies
            ]
            names = (*_KEPT, "room_usage")  # the old name of earmark_usage, until 1.1
            kept = {name: value for name in names if (value := self._meta(name, None)) is not None}
            return State(
                trainers={trainer.id: trainer for trainer in trainers},
                leases={lease.id: lease for lease in leases},
                **codec.decoded(State, old_names.status(kept)),
            )

    def save(self, before: State, after: State, actions: Iterable[Action]) -> None:
        """Write one step, its changes and actions, with all that is owed; raises LedgerError with nothing written."""
        owed = self._with(before, after, actions)
        with self._transaction():
            self._write(owed)
        self._thinning.settle()
        self._owed = None
        self.history_bytes += owed.new_bytes

    def owe(self, before: State, after: State, actions: Iterable[Action]) -> None:
        """Remember a step that cannot be written now: it is written with the next one that can."""
        self._owed = self._with(before, after, actions)
        del self._owed.events[:-_MOST_OWED]
        self._thinning.settle()
        self.history_bytes += self._owed.new_bytes

    def _with(self, before: State, after: State, actions: Iterable[Action]) -> _Owed:
        """Return what is owed already, with one more step."""
        owed = self._owed or _Owed(before, before, [], usage.Tally())
        happened, tally = [], owed.tally.copy()
        for action in actions:
            if isinstance(action, Charged):
                tally.take(after.time_s, action.shares)
            else:
                happened.append(rows.of(after.time_s, action))
        new = self._thinning.plan(happened)
        return _Owed(owed.before, after, owed.events + new, tally, _size(new))

    def _write(self, owed: _Owed) -> None:
        before, after = owed.before, owed.after
        self._save_changed("trainers", "arrived_s", before.trainers, after.trainers)
        self._save_changed("leases", "granted_s", before.leases, after.leases)
        for name in _KEPT:
            value = getattr(after, name)
            if value != getattr(before, name):
                self._set_meta(name, codec.plain(value))
        self._insert(owed.events)
        owed.tally.write(self._db)

    def _insert(self, events: Sequence[EventRow]) -> None:
        self._db.executemany("INSERT INTO events (at_s, kind, trainer, node, data) VALUES (?, ?, ?, ?, ?)", events)
        self.written_bytes += _size(events)

    def maintain(self, now_s: float) -> None:
        """Do a few milliseconds of upkeep: old events go, the file shrinks; raises LedgerError if that fails."""
        if not self._begun:  # a daemon has this ledger from now on
            self.keep(_HOST, {"boot": filesystem.boot_id()})
            self._query("PRAGMA wal_checkpoint(FULL)")
            self._begun = True
        self._checkpoints.begin()
        self._write_held(now_s)
        with self._reading():
            due = self._upkeep.due(now_s)
        if due:
            with self._transaction():
                self._upkeep.step(now_s)
        if (hour := int(now_s // usage.HOUR_S)) != self._usage_hour:
            with self._transaction():
                usage.forget(self._db, now_s)
            self._usage_hour = hour

    def _write_held(self, now_s: float) -> None:
        if held := list(self._thinning.overdue(now_s)):
            with self._transaction():
                self._insert(held)
            self._thinning.release(held)

    def size(self) -> dict[str, Any]:
        """Return the file's size, its limit, and the time of its oldest event, for `bft status`."""
        return self._upkeep.shown()

    def tuned(self) -> dict[str, Any]:
        """Return the settings that `bft tune` changed."""
        return self._meta_object("tuned")

    def set_tuned(self, settings: Mapping[str, Any]) -> None:
        """Keep settings of `bft tune` for the next start."""
        with self._transaction():
            self._set_meta("tuned", dict(settings))

    def kept(self, name: str) -> dict[str, Any]:
        """Return what `keep` wrote last under a name; empty if it never did."""
        return self._meta_object(f"kept.{name}")

    def keep(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep a JSON object for use after a restart."""
        with self._transaction():
            self.put_kept(name, data)

    def put_kept(self, name: str, data: Mapping[str, Any]) -> None:
        """Do the same as `keep` within a call of `write`."""
        self._set_meta(f"kept.{name}", dict(data))

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` in a transaction and return its result; raises LedgerError with nothing written."""
        with self._transaction():
            return work(self._db)

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work`, which only reads, and return its result; raises LedgerError."""
        with self._reading():
            return work(self._db)

    def events(self, after: int, limit: int, trainers: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return events with a rowid above `after`, oldest first; only those of `trainers` if given."""
        only = "" if trainers is None else " AND trainer IN (SELECT value FROM json_each(?))"
        found = self._query(
            f"SELECT rowid, at_s, kind, trainer, node, data FROM events WHERE rowid > ?{only} ORDER BY rowid LIMIT ?",
            (after, limit) if trainers is None else (after, json.dumps(list(trainers)), limit),
        )
        names = ("rowid", "at_s", "kind", "trainer", "node")
        with self._decoding():
            return [dict(zip(names, row[:-1], strict=True)) | {"data": json.loads(row[-1])} for row in found]

    def decisions(self, trainer: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the last decisions about one trainer, or about all, oldest first: each as a sentence and as data.

        Decisions written by an older bftd are sentences only.
        """
        where = "kind = 'decision'" + (" AND trainer = ?" if trainer is not None else "")
        found = self._query(
            f"SELECT at_s, trainer, data FROM events WHERE {where} ORDER BY rowid DESC LIMIT ?",
            (limit,) if trainer is None else (trainer, limit),
        )
        with self._decoding():
            return [{"at_s": at_s, "trainer": who} | json.loads(data) for at_s, who, data in reversed(found)]

    def give_backs_s(self) -> list[float]:
        """Return the durations of the last give-backs in seconds, newest first."""
        found = self._query(
            "SELECT data FROM events WHERE kind = 'give_back' ORDER BY rowid DESC LIMIT ?", (GIVE_BACKS,)
        )
        with self._decoding():
            return [float(json.loads(data)["duration_s"]) for (data,) in found]

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._reading():
            return self._db.execute(sql, values).fetchall()

    def _own(self) -> int:
        """Take the file's lock, which the kernel releases when the daemon dies."""
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
            raise LedgerInUse(message) from None
        return lock

    def _opened(self, max_bytes: int, working: Callable[[], None]) -> sqlite3.Connection:
        """Return the database in this version's form, created or upgraded if necessary."""
        # SQLite gives the files beside it the same mode: not everybody may read what users' trainings report.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(self.path, _BUSY_S, isolation_level=None)) as db:
            version = schema.version_of(db)
            if version:
                self._check(db, version)
            else:
                db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before anything else is in the file
                schema.create(db, self._mode)
        if 0 < version < schema.VERSION:
            log.info("the ledger %s is brought up to date", self.path)
            migrate(self.path, version, KEEP_EVENTS_S, working)
        db = sqlite3.connect(self.path, _BUSY_S, isolation_level=None)
        try:
            (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise LedgerError(
                    f"the file system of the ledger {self.path} has no shared memory: set [ledger] path to a local disk"
                )
            # with WAL, NORMAL can lose the last steps if the machine dies, but never corrupts the file
            db.execute("PRAGMA synchronous=NORMAL")
            pages = max(_LOG_PAGES[0], min(_LOG_PAGES[1], max_bytes // (10 * _PAGE_BYTES)))
            db.execute(f"PRAGMA wal_autocheckpoint={pages}")
            db.execute(f"PRAGMA journal_size_limit={pages * _PAGE_BYTES}")
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, db: sqlite3.Connection, version: int) -> None:
        """Refuse the ledger of a newer bftd, or of a bftd in another mode."""
        if version > schema.VERSION:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}, this bftd writes {schema.VERSION}: "
                "use the bftd that wrote it, or move the file away"
            )
        row = db.execute("SELECT value FROM meta WHERE key = 'mode'").fetchone()
        written = json.loads(row[0]) if row else "live"
        if written != self._mode:
            raise LedgerError(
                f"the ledger {self.path} is of a daemon in {written} mode and this one runs in {self._mode} mode: "
                "set another [ledger] path, or move the file away"
            )

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            # repr: the text of a KeyError alone says nothing, and text of another program must not make a second line
            raise LedgerError(
                f"the ledger {self.path} holds what no bftd wrote ({error!r}): move it away to begin a new one"
            ) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self.path} cannot be read ({error}): {filesystem.advice(error)}") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block as one transaction; raises LedgerError if it cannot be written."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be written ({error}): {filesystem.advice(error)}"
            ) from None
        finally:
            if self._db.in_transaction:  # some errors have already ended it
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

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
        found = self._query("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(found[0][0]) if found else default

    def _meta_object(self, key: str) -> dict[str, Any]:
        with self._decoding():
            value = self._meta(key, {})
            if not isinstance(value, dict):
                raise TypeError(f"{key} is no object")
            return value

    def _set_meta(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))


def _size(events: Iterable[EventRow]) -> int:
    """Return the bytes that events take in the file."""
    return sum(len(row[-1]) + _ROW_BYTES for row in events)


def _differs(before: Trainer | Lease | None, after: Trainer | Lease) -> bool:
    """Whether the kept part of an item has changed; a driver's contact alone (`heard_s`) is not worth a write."""
    if not isinstance(before, Trainer) or not isinstance(after, Trainer):
        return True
    return any(one is not other and one != other for one, other in zip(_WRITTEN(before), _WRITTEN(after), strict=True))


def _lasting(item: Trainer | Lease) -> Trainer | Lease:
    """Return an item without its unknown leases: one that no list names is given back anyway, and is not kept."""
    return dataclasses.replace(item, unknown_leases=()) if isinstance(item, Trainer) and item.unknown_leases else item


@dataclass
class _Owed:
    """The data to be written: the states before and after, the events, and the charges of node-seconds.

    `new_bytes` are the bytes of the last step's events.
    """

    before: State
    after: State
    events: list[EventRow]
    tally: usage.Tally
    new_bytes: int = 0
