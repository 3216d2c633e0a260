"""What profiles said, by the script that was profiled: for who submits the same script later, from whatever host.

Points are kept beside it (`sizing.cpu.store`); this is what came of them. A script is known by what its file holds.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sizing.database import Database, cache_folder
from sizing.errors import SizingError

VERSION = 1
_SCHEMA = """
CREATE TABLE needs (
    script TEXT NOT NULL, arguments TEXT NOT NULL, host TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (script, arguments, host)
);
"""
_MOST_BYTES = 16 * 2**20  # of a file that counts as part of a command


@dataclass(frozen=True, slots=True)
class Kept:
    """CPUs and memory for each GPU, or of the whole command where it uses none (`gpus` 0), as bytes.

    It was profiled on `host` at `made_s`. `same_arguments` says whether with those that were asked about.
    """

    cpus: int
    memory_bytes: int
    gpus: int
    host: str
    made_s: float
    same_arguments: bool = True


def keep(command: Sequence[str], folder: Path, need: Kept, path: Path | None = None) -> str:
    """Keep what a command needs, for each file among its words; returns why it could not be kept, "" where it was."""
    rows = []
    for at, word in enumerate(command):
        if (digest := _digest(folder / word)) is not None:
            rows.append((digest, json.dumps(list(command[at + 1 :])), need.host, need.made_s, json.dumps(asdict(need))))
    if not rows:
        return ""
    try:
        with _database(path).writing() as db:
            db.executemany("INSERT OR REPLACE INTO needs VALUES (?, ?, ?, ?, ?)", rows)
    except (SizingError, RuntimeError, OSError) as error:
        return f"what the script needs is not kept for elastic jobs: {error}"
    return ""


def find(script: Path, arguments: Sequence[str], path: Path | None = None) -> Kept | None:
    """The newest profile of a script, one with these arguments before all others; None where there is none.

    Raises SizingError where the cache cannot be read, OSError where the script cannot.
    """
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    words = json.dumps(list(arguments))
    query = "SELECT arguments, body FROM needs WHERE script = ? ORDER BY arguments = ? DESC, made DESC"
    for known, body in _database(path).rows(query, (digest, words)):
        with suppress(TypeError, ValueError):
            found = Kept(**json.loads(body))
            if found.cpus >= 1 and found.memory_bytes >= 1:
                return replace(found, same_arguments=known == words)
    return None


def age_s(kept: Kept) -> float:
    """How old it is; never less than 0, whatever clocks say."""
    return max(0.0, time.time() - kept.made_s)


def _database(path: Path | None) -> Database:
    return Database(cache_folder() / "cpu-needs.sqlite" if path is None else path, _SCHEMA, VERSION, ("needs",))


def _digest(path: Path) -> str | None:
    """The digest of a file that may be a script; None for what is none, such as an interpreter."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return None if b"\0" in content[:1024] else hashlib.sha256(content).hexdigest()
