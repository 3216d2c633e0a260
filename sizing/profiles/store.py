"""The cache of profiles: one SQLite file per user, which several processes may use at once.

A model is identified (`Model.id`) by the contents of its file and of the modules beside it, or by its sizes. The list
of files is learnt and stored when the model is profiled; a later look-up compares today's contents of the same files.
Installed packages, data files and the environment are not compared.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sizing.base.estimate import Estimate
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.child import launch
from sizing.files.database import Database, cache_folder
from sizing.model.transformer import ModelConfig
from sizing.model.wide_resnet import WideResNet
from sizing.profiles.profile import NO_PLAN, Result, Setting, Source, Unfit, sizes_of

VERSION = 1
_SCHEMA = """
CREATE TABLE models (id TEXT PRIMARY KEY, name TEXT NOT NULL, files TEXT NOT NULL, seen REAL NOT NULL);
CREATE TABLE profiles (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, device TEXT NOT NULL, torch TEXT NOT NULL, setting TEXT NOT NULL,
    shard TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL
);
CREATE INDEX of_model ON profiles (model, device, setting);
"""
_REFUSALS = "CREATE TABLE IF NOT EXISTS refusals (model TEXT, tp INTEGER, why TEXT NOT NULL, PRIMARY KEY (model, tp))"
_ANY = 0  # stands for any tensor-parallel size


@dataclass(frozen=True, slots=True)
class Model:
    """A model in the cache: `name` is for display, `files` are paths from the script's folder with their SHA-256."""

    id: str
    name: str
    files: tuple[tuple[str, str], ...] = ()


def by_sizes(source: ModelConfig | WideResNet) -> Model:
    """Return the model of given sizes; its parallelism, its batch and the fields of a Setting do not count."""
    text = json.dumps(sizes_of(source), sort_keys=True)
    name = source.name if isinstance(source, ModelConfig) else "wresnet"
    return Model(hashlib.sha256(text.encode()).hexdigest(), name)


def by_files(step: str, files: Sequence[tuple[str, str]]) -> Model:
    """Return a user's model that is made of `files`, as its profile reported."""
    path, function = launch.parts(step)
    text = json.dumps([function, path.name, sorted(map(list, files))])
    return Model(hashlib.sha256(text.encode()).hexdigest(), f"{path.name}:{function}", tuple(sorted(files)))


class Store(Database):
    """The cache at `path`, by default `usual_path()`."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path if path is not None else usual_path(), _SCHEMA, VERSION, ("models", "profiles"))

    def model(self, source: Source) -> Model | None:
        """Return the model of a source; None for a user's file that was never profiled with its present contents."""
        if isinstance(source, (ModelConfig, WideResNet)):
            return by_sizes(source)
        path, function = launch.parts(source)
        name = f"{path.name}:{function}"
        today: dict[str, str] = {}
        for row in self.rows("SELECT id, files FROM models WHERE name = ? ORDER BY seen DESC", (name,)):
            files = _files(row[1])
            if files and all(_digest(path.parent / place, today) == digest for place, digest in files):
                return Model(str(row[0]), name, files)
        return None

    def get(self, model: Model, device: str, setting: Setting, shard: StageShard, torch: str = "") -> Result | None:
        """Return the result for one shard: with `torch` only of that version, else the newest."""
        return self.all(model, device, setting, torch).get(shard)

    def all(self, model: Model, device: str, setting: Setting, torch: str = "") -> dict[StageShard, Result]:
        """Return all results of a model on a type of device; without `torch` the newest of any version."""
        found: dict[StageShard, Result] = {}
        query = "SELECT torch, body FROM profiles WHERE model = ? AND device = ? AND setting = ? ORDER BY made"
        for version, body in self.rows(query, (model.id, device, _setting(setting))):
            if torch in ("", version):
                with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                    result = read(json.loads(body))
                    found[result.shard] = result
        return found

    def devices(self, model: Model) -> tuple[str, ...]:
        """Return the types of devices that a model was profiled on."""
        rows = self.rows("SELECT DISTINCT device FROM profiles WHERE model = ? ORDER BY device", (model.id,))
        return tuple(str(row[0]) for row in rows)

    def prepare(self) -> None:
        """Create the file if it is missing; raises SizingError early, before measurements that could not be stored."""
        with self.writing():
            pass

    def put(self, model: Model, setting: Setting, results: Sequence[Result]) -> None:
        """Store results, all or none; they replace older ones for the same shards."""
        now = time.time()
        with self.writing() as db:
            files = json.dumps(model.files)
            db.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", (model.id, model.name, files, now))
            for result in results:
                shard = json.dumps(asdict(result.shard))
                row = (model.id, result.device, result.torch, _setting(setting), shard)
                key = hashlib.sha256(json.dumps(row).encode()).hexdigest()
                body = json.dumps(asdict(result))
                db.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (key, *row, now, body))

    def refuse(self, model: Model, tp: int, why: str) -> None:
        """Store that a model cannot be cut over `tp` ranks, so that it is not started again only to be refused."""
        with self.writing() as db:
            db.execute(_REFUSALS)
            row = (model.id, _ANY if why.startswith(NO_PLAN) else tp, why)
            db.execute("INSERT OR REPLACE INTO refusals VALUES (?, ?, ?)", row)

    def refused(self, model: Model, tp: int) -> str:
        """Return the reason why a model cannot be cut over `tp` ranks, "" if none is known."""
        if not self.rows("SELECT name FROM sqlite_master WHERE name = 'refusals'", ()):
            return ""
        rows = self.rows("SELECT why FROM refusals WHERE model = ? AND tp IN (?, ?)", (model.id, _ANY, tp))
        return str(rows[0][0]) if rows else ""

    def forget(self, name: str = "") -> int:
        """Delete all profiles of a model by its name, or of all models; returns the number deleted."""
        if not self.path.exists():
            return 0
        with self.writing() as db:
            db.execute(_REFUSALS)
            which = "WHERE model IN (SELECT id FROM models WHERE name = :name)" if name else ""
            gone = db.execute(f"DELETE FROM profiles {which}", {"name": name}).rowcount
            db.execute(f"DELETE FROM refusals {which}", {"name": name})
            db.execute(f"DELETE FROM models {'WHERE name = :name' if name else ''}", {"name": name})
        return int(gone)

    def listed(self) -> list[tuple[str, str, str, int, float]]:
        """Return rows of model, device, setting, number of shards, and time of the last one (seconds since 1970)."""
        return self.rows(
            "SELECT m.name, p.device, p.setting, COUNT(*), MAX(p.made) FROM profiles p JOIN models m ON m.id = p.model "
            "GROUP BY p.model, p.device, p.setting ORDER BY MAX(p.made) DESC",
            (),
        )


def usual_path() -> Path:
    """Return the path of the cache: bft/profiles.sqlite in `$XDG_CACHE_HOME` or ~/.cache."""
    return cache_folder() / "profiles.sqlite"


def _setting(setting: Setting) -> str:
    """Return a setting as text, without the number of rounds."""
    return f"{setting.optimizer} {setting.precision} {setting.threads}"


def _files(text: str) -> tuple[tuple[str, str], ...]:
    """Read a model's files by path and SHA-256; none if the stored text is damaged."""
    try:
        return tuple((str(place), str(digest)) for place, digest in json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return ()


def _digest(path: Path, known: dict[str, str]) -> str:
    if (key := str(path)) not in known:
        try:
            known[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            known[key] = ""
    return known[key]


def read(body: dict[str, Any]) -> Result:
    """Read a result from its JSON; raises KeyError, TypeError or ValueError if the JSON is not a result."""
    shard = StageShard(**body.pop("shard"))
    if "why" in body:
        return Unfit(shard, **body)
    for name in ("compute_s", "update_s"):
        body[name] = Estimate(**body[name])
    body["exchanges"] = tuple(Exchange(**each) for each in body["exchanges"])
    return ShardProfile(shard=shard, **body)
