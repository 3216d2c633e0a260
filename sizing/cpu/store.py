"""The cache of measured points: each is written at once, so a profile that was ended can be resumed.

A command is identified by its words, its working folder, the content of the files that it names, the CPUs and GPUs of
the host, the way its progress is read, and the time it is measured. Modules that its script imports, installed
packages, data files and most of the environment are not seen: the age is shown, and a profile can be made again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sizing.base.errors import SizingError
from sizing.base.estimate import Estimate
from sizing.cpu.runs.affinity import ProfilingHost
from sizing.cpu.runs.measurement import ObservationLimits, PointResult
from sizing.files.database import Database, cache_folder

VERSION = 1
_SCHEMA = """
CREATE TABLE points (
    key TEXT NOT NULL, cpus INTEGER NOT NULL, name TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (key, cpus)
);
"""
_MOST_BYTES = 16 * 2**20  # largest file that counts as part of the command
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def key_of(
    command: tuple[str, ...],
    regex: str | None,
    gpus: int,
    host: ProfilingHost,
    environ: Mapping[str, str],
    folder: Path,
    limits: ObservationLimits | None = None,
) -> str:
    """Return the key of a command's points; it raises nothing. Of `limits` only warm-up and least time count."""
    files = {}
    for word in command:
        for place in (place for part in (word, *word.split()) for place in _places(part)):
            path = folder / place
            with suppress(OSError, ValueError):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    files[place] = hashlib.sha256(path.read_bytes()).hexdigest()
    threads = {name: environ[name] for name in _THREADS if name in environ}
    about: list[object] = [command, str(folder), files, regex, gpus, host.cpu_model, host.gpus, threads]
    about += [] if limits is None else [limits.warmup_s, limits.least_s]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


class Points:
    """The points of one command; if the cache cannot be used they are not kept, which `said` reports once."""

    def __init__(self, key: str, name: str, path: Path | None = None) -> None:
        self._key, self._name = key, name
        self._database: Database | None = None
        self._said: list[str] = []
        try:
            place = path if path is not None else usual_path()
            self._database = Database(place, _SCHEMA, VERSION, ("points",))
        except (RuntimeError, OSError) as error:
            self._said.append(f"there is no cache, so nothing is kept: {error}; $XDG_CACHE_HOME names a folder")

    @property
    def said(self) -> list[str]:
        """Sentences about the cache for the user."""
        return [*(self._database.said if self._database is not None else ()), *self._said]

    def known(self) -> dict[int, PointResult]:
        """Return the points by CPUs, oldest first."""
        found: dict[int, PointResult] = {}
        if self._database is not None:
            query = "SELECT body FROM points WHERE key = ? ORDER BY made"
            try:
                for (body,) in self._database.rows(query, (self._key,)):
                    with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                        point = read(json.loads(body))
                        found[point.cpus] = point
            except SizingError as error:
                self._without(error)
        return found

    def put(self, point: PointResult) -> None:
        """Keep a point, in place of one with as many CPUs."""
        if self._database is None:
            return
        row = (self._key, point.cpus, self._name, point.made_s, json.dumps(asdict(point)))
        try:
            with self._database.writing() as db:
                db.execute("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)", row)
        except SizingError as error:
            self._without(error)

    def _without(self, error: SizingError) -> None:
        self._said.append(f"the cache is not used, so nothing is kept: {error}")
        self._database = None


def usual_path() -> Path:
    """Return the path of the cache: next to the cache of stage profiles."""
    return cache_folder() / "cpu.sqlite"


def age_s(point: PointResult) -> float:
    """Return the age of a point; never less than 0, whatever the clocks say."""
    return max(0.0, time.time() - point.made_s)


def read(body: dict[str, Any]) -> PointResult:
    """Return a point from its JSON; raise KeyError, OverflowError, TypeError or ValueError if it is invalid."""
    names = {field.name for field in dataclasses.fields(PointResult)}
    if set(body) - names or not isinstance(body["cpus"], int):
        raise ValueError("of another form")
    rate = Estimate(**body["rate"])
    blocks, notes = tuple(map(float, body["blocks"])), tuple(map(str, body["notes"]))
    numbers = (body[name] for name in names - {"rate", "blocks", "notes", "unit", "kind"} if name in body)
    told = (rate.value, rate.low, rate.high, *blocks, *numbers)
    if not blocks or not rate.value > 0 or not all(isinstance(x, (int, float)) and math.isfinite(x) for x in told):
        raise ValueError("no rate")
    return PointResult(**{**body, "rate": rate, "blocks": blocks, "notes": notes})


def _places(word: str) -> tuple[str, ...]:
    """Return the files that a word of a command may name: itself, the value of an option, a Python module."""
    value = word.rpartition("=")[2]
    dotted = word.replace(".", os.sep)
    modules = (f"{dotted}.py", f"{dotted}{os.sep}__main__.py") if word.replace(".", "").isidentifier() else ()
    return tuple(dict.fromkeys(filter(None, (word, value, *modules))))
