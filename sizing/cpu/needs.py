"""Results of profiles by the profiled script: for a later submission of the same script, from any host.

Points are kept separately (`sizing.cpu.store`); this has their results. A script is identified by its file's content.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sizing.base.errors import SizingError
from sizing.files.database import Database, cache_folder

VERSION = 1
_SCHEMA = """
CREATE TABLE needs (
    script TEXT NOT NULL, arguments TEXT NOT NULL, host TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (script, arguments, host)
);
"""
_MOST_BYTES = 16 * 2**20  # largest file that counts as part of a command


@dataclass(frozen=True, slots=True)
class StoredNeed:
    """CPUs and memory (bytes) for each GPU, or of the whole command if it uses none (`gpus` 0).

    It was profiled on `host` at `made_s`. `same_arguments` says whether the arguments were those asked about.
    """

    cpus: int
    memory_bytes: int
    gpus: int
    host: str
    made_s: float
    same_arguments: bool = True


def keep(command: Sequence[str], folder: Path, need: StoredNeed, path: Path | None = None) -> str:
    """Keep the needs of a command, for each file among its words; return why that failed, "" if it did not."""
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


def find(script: Path, arguments: Sequence[str], path: Path | None = None) -> StoredNeed | None:
    """Return the newest profile of a script, preferably with these arguments; None if there is none.

    Raises SizingError if the cache cannot be read, OSError if the script cannot.
    """
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    words = json.dumps(list(arguments))
    query = "SELECT arguments, body FROM needs WHERE script = ? ORDER BY arguments = ? DESC, made DESC"
    for known, body in _database(path).rows(query, (digest, words)):
        with suppress(TypeError, ValueError, RecursionError):
            found = StoredNeed(**json.loads(body))
            if found.cpus >= 1 and found.memory_bytes >= 1:
                return replace(found, same_arguments=known == words)
    return None


def age_s(kept: StoredNeed) -> float:
    """Return its age; never less than 0, whatever the clocks say."""
    return max(0.0, time.time() - kept.made_s)


def _database(path: Path | None) -> Database:
    return Database(cache_folder() / "cpu-needs.sqlite" if path is None else path, _SCHEMA, VERSION, ("needs",))


def _digest(path: Path) -> str | None:
    """Return the digest of a file that may be a script; None for others, such as an interpreter."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = path.read_bytes()
    except (OSError, ValueError):
        return None
    return None if b"\0" in content[:1024] else hashlib.sha256(content).hexdigest()
