"""The cache of profiles: one SQLite file of a user's, which several processes may use at once.

A model is known by what its file and the modules beside it hold, or by its sizes: `Model.id`. Which files those are is
learnt when it is profiled, and written down; whoever asks later has today's contents of the same files compared. Not
seen are installed packages, data files, and the environment. The journal is SQLite's usual one and no write-ahead log:
home folders lie on file servers, where that is wrong between hosts.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sizing.cells.profile import NO_PLAN, Result, Setting, Source, Unfit, sizes_of
from sizing.cells.shards import Exchange, Shard, ShardProfile
from sizing.errors import SizingError
from sizing.estimate import Estimate
from sizing.model import launch
from sizing.model.transformer import ModelConfig
from sizing.model.wide_resnet import WideResNet

VERSION = 1
_BUSY_S = 15.0
_SCHEMA = """
CREATE TABLE models (id TEXT PRIMARY KEY, name TEXT NOT NULL, files TEXT NOT NULL, seen REAL NOT NULL);
CREATE TABLE profiles (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, device TEXT NOT NULL, torch TEXT NOT NULL, setting TEXT NOT NULL,
    shard TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL
);
CREATE INDEX of_model ON profiles (model, device, setting);
"""
_REFUSALS = "CREATE TABLE IF NOT EXISTS refusals (model TEXT, tp INTEGER, why TEXT NOT NULL, PRIMARY KEY (model, tp))"
_ANY = 0  # in place of a tensor-parallel size


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the cache knows it: `name` for people, `files` by path from the script's folder and SHA-256."""

    id: str
    name: str
    files: tuple[tuple[str, str], ...] = ()


def by_sizes(source: ModelConfig | WideResNet) -> Model:
    """A model that its sizes say all of; how it is spread, its batch and a setting's part of it do not count."""
    text = json.dumps(sizes_of(source), sort_keys=True)
    name = source.name if isinstance(source, ModelConfig) else "wresnet"
    return Model(hashlib.sha256(text.encode()).hexdigest(), name)


def by_files(step: str, files: Sequence[tuple[str, str]]) -> Model:
    """A user's model, of which a profile said which files it is made of."""
    path, function = launch.parts(step)
    text = json.dumps([function, path.name, sorted(map(list, files))])
    return Model(hashlib.sha256(text.encode()).hexdigest(), f"{path.name}:{function}", tuple(sorted(files)))


class Store:
    """The cache at `path`; it and its folder are made at the first write, for the user alone.

    A file that is none, or of another version, is set aside under another name, which `said` tells in one line.
    Raises SizingError, one line, where it cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else usual_path()
        self.said: list[str] = []

    def model(self, source: Source) -> Model | None:
        """What the cache knows the source by; None for a user's file that was never profiled as it is now."""
        if isinstance(source, (ModelConfig, WideResNet)):
            return by_sizes(source)
        path, function = launch.parts(source)
        name = f"{path.name}:{function}"
        today: dict[str, str] = {}
        for row in self._rows("SELECT id, files FROM models WHERE name = ? ORDER BY seen DESC", (name,)):
            files = _files(row[1])
            if files and all(_digest(path.parent / place, today) == digest for place, digest in files):
                return Model(str(row[0]), name, files)
        return None

    def get(self, model: Model, device: str, setting: Setting, shard: Shard, torch: str = "") -> Result | None:
        """The result for one shard; with `torch` of that version only, else the newest."""
        return self.all(model, device, setting, torch).get(shard)

    def all(self, model: Model, device: str, setting: Setting, torch: str = "") -> dict[Shard, Result]:
        """All results of a model on a type of device; of several versions of torch the newest."""
        found: dict[Shard, Result] = {}
        query = "SELECT torch, body FROM profiles WHERE model = ? AND device = ? AND setting = ? ORDER BY made"
        for version, body in self._rows(query, (model.id, device, _setting(setting))):
            if torch in ("", version):
                with suppress(ValueError, TypeError, KeyError, AttributeError):
                    result = read(json.loads(body))
                    found[result.shard] = result
        return found

    def devices(self, model: Model) -> tuple[str, ...]:
        """The types of devices that a model was profiled on."""
        rows = self._rows("SELECT DISTINCT device FROM profiles WHERE model = ? ORDER BY device", (model.id,))
        return tuple(str(row[0]) for row in rows)

    def prepare(self) -> None:
        """Make the file where there is none; raises SizingError before anything is measured that could not be kept."""
        with self._writing():
            pass

    def put(self, model: Model, setting: Setting, results: Sequence[Result]) -> None:
        """Write results down, all or none; what was there for the same shards is replaced."""
        now = time.time()
        with self._writing() as db:
            files = json.dumps(model.files)
            db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", (model.id, model.name, files, now))
            for result in results:
                shard = json.dumps(asdict(result.shard))
                row = (model.id, result.device, result.torch, _setting(setting), shard)
                key = hashlib.sha256(json.dumps(row).encode()).hexdigest()
                body = json.dumps(asdict(result))
                db.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (key, *row, now, body))

    def refuse(self, model: Model, tp: int, why: str) -> None:
        """Write down that a model cannot be cut over `tp` ranks, so that nobody has to start it to hear so again."""
        with self._writing() as db:
            db.execute(_REFUSALS)
            row = (model.id, _ANY if why.startswith(NO_PLAN) else tp, why)
            db.execute("INSERT OR REPLACE INTO refusals VALUES (?, ?, ?)", row)

    def refused(self, model: Model, tp: int) -> str:
        """Why a model cannot be cut over `tp` ranks, "" where that is not known."""
        if not self._rows("SELECT name FROM sqlite_master WHERE name = 'refusals'", ()):
            return ""
        rows = self._rows("SELECT why FROM refusals WHERE model = ? AND tp IN (?, ?)", (model.id, _ANY, tp))
        return str(rows[0][0]) if rows else ""

    def forget(self, name: str = "") -> int:
        """Drop all profiles of a model by its name, or of all; returns how many."""
        if not self.path.exists():
            return 0
        with self._writing() as db:
            db.execute(_REFUSALS)
            which = "WHERE model IN (SELECT id FROM models WHERE name = :name)" if name else ""
            gone = db.execute(f"DELETE FROM profiles {which}", {"name": name}).rowcount
            db.execute(f"DELETE FROM refusals {which}", {"name": name})
            db.execute(f"DELETE FROM models {'WHERE name = :name' if name else ''}", {"name": name})
        return int(gone)

    def listed(self) -> list[tuple[str, str, str, int, float]]:
        """Model, device, setting, how many shards, and when the last was made (seconds since 1970)."""
        return self._rows(
            "SELECT m.name, p.device, p.setting, COUNT(*), MAX(p.made) FROM profiles p JOIN models m ON m.id = p.model "
            "GROUP BY p.model, p.device, p.setting ORDER BY MAX(p.made) DESC",
            (),
        )

    def _rows(self, query: str, values: Sequence[object]) -> list[Any]:
        if not self.path.exists():
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
    def _writing(self) -> Iterator[sqlite3.Connection]:
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
                if db.execute("PRAGMA user_version").fetchone()[0] == 0:  # another may have been quicker
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {VERSION}")
                db.execute("COMMIT")
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"of version {version}, this is {VERSION}")
            elif not {"models", "profiles"} <= {row[0] for row in db.execute("SELECT name FROM sqlite_master")}:
                raise sqlite3.DatabaseError("tables are missing")
        except BaseException:
            db.close()
            raise
        return db

    def _aside(self, error: sqlite3.DatabaseError) -> None:
        """Give a file that cannot be used another name; one that only is busy or unwritable stays, and is told."""
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


def usual_path() -> Path:
    """Where the cache is: `$XDG_CACHE_HOME` or ~/.cache, bft/profiles.sqlite."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "bft" / "profiles.sqlite"


def _setting(setting: Setting) -> str:
    """How shards were run, without how often."""
    return f"{setting.optimizer} {setting.precision} {setting.threads}"


def _files(text: str) -> tuple[tuple[str, str], ...]:
    """A model's files by path and SHA-256; none where what was written down of them is damaged."""
    try:
        return tuple((str(place), str(digest)) for place, digest in json.loads(text))
    except (ValueError, TypeError):
        return ()


def _digest(path: Path, known: dict[str, str]) -> str:
    if (key := str(path)) not in known:
        try:
            known[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            known[key] = ""
    return known[key]


def read(body: dict[str, Any]) -> Result:
    """A result out of its JSON; raises KeyError, TypeError or ValueError for what is none."""
    shard = Shard(**body.pop("shard"))
    if "why" in body:
        return Unfit(shard, **body)
    for name in ("compute_s", "update_s"):
        body[name] = Estimate(**body[name])
    body["exchanges"] = tuple(Exchange(**each) for each in body["exchanges"])
    return ShardProfile(shard=shard, **body)
