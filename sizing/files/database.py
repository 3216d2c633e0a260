"""A user's SQLite file that several processes may use at once; a damaged file is set aside, never deleted.

The journal is SQLite's default, not a write-ahead log: home folders lie on file servers, where a write-ahead log does
not work between hosts.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sizing.base.errors import SizingError

_BUSY_S = 15.0


class Database:
    """The file at `path`; it and its folder are made at the first write, for the user alone.

    A file that is not such a database, or has another version, is renamed, and one line in `said` says so. Raises
    SizingError, one line, if it cannot be read or written.
    """

    def __init__(self, path: Path, schema: str, version: int, tables: Sequence[str]) -> None:
        """Set up the database; `schema` are the statements that make its `tables`."""
        self.path = path
        self.said: list[str] = []
        self._schema, self._version, self._tables = schema, version, frozenset(tables)

    def rows(self, query: str, values: Sequence[object]) -> list[Any]:
        """Return the rows of a query; none if the file does not exist."""
        if not _is_there(self.path):
            return []
        for _ in range(2):
            try:
                with closing(self._opened()) as db:
                    return db.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                self._aside(error)
            except OSError as error:
                raise SizingError(f"{self.path}: {error.strerror}; $XDG_CACHE_HOME names another folder") from None
        return []

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction: either all of it is written, or nothing."""
        db = None
        try:
            for _ in range(2):
                try:
                    db = self._opened()
                    db.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.DatabaseError as error:
                    if db is not None:
                        db.close()
                        db = None
                    self._aside(error)
            if db is None:
                raise SizingError(f"{self.path} cannot be written; $XDG_CACHE_HOME names another folder")
            yield db
            db.commit()
        except (OSError, sqlite3.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SizingError(f"{self.path}: {why}; $XDG_CACHE_HOME names another folder") from None
        finally:
            if db is not None:
                db.rollback()
                db.close()

    def _opened(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        db = sqlite3.connect(self.path, _BUSY_S, isolation_level=None)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                db.execute("BEGIN IMMEDIATE")
                if db.execute("PRAGMA user_version").fetchone()[0] == 0:  # another process may have been faster
                    for statement in filter(str.strip, self._schema.split(";")):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {self._version}")
                db.execute("COMMIT")
            elif version != self._version:
                raise sqlite3.DatabaseError(f"of version {version}, this is {self._version}")
            elif not self._tables <= {row[0] for row in db.execute("SELECT name FROM sqlite_master")}:
                raise sqlite3.DatabaseError("tables are missing")
        except BaseException:
            db.close()
            raise
        return db

    def _aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename a file that cannot be used; raise SizingError if it is only busy or unwritable."""
        if isinstance(error, sqlite3.OperationalError):
            raise SizingError(f"{self.path}: {error}; try again, or $XDG_CACHE_HOME names another folder") from None
        for number in range(100):
            other = self.path.with_name(f"{self.path.name}.damaged-{number}")
            if not other.exists():
                break
        try:
            os.replace(self.path, other)
            for end in ("-journal", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{end}", f"{other}{end}")
        except OSError as trouble:
            raise SizingError(
                f"{self.path} is damaged ({error}), and cannot be set aside: {trouble.strerror}"
            ) from None
        self.said.append(f"{self.path} could not be used ({error}): it is now {other.name}, and a new one was begun")


def cache_folder() -> Path:
    """Return the folder of caches: bft in `$XDG_CACHE_HOME` or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "bft"


def _is_there(path: Path) -> bool:
    """Whether a file exists; raises SizingError if that cannot be determined."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SizingError(f"{path}: {error.strerror}; $XDG_CACHE_HOME names another folder") from None
    return True
