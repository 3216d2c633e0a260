"""A cache of traced processes' answers, each valid as long as nothing that it depended on has changed.

An answer is a file in the user's cache folder. Its name is a hash of the request: the step's file and function, the
batch, the spread, the folder, the Python with its variables, and this package's own code. The file also records the
step's other dependencies (`child.depends`): files that it read or looked for, folders that it listed or that packages
are installed in, and environment variables that it read. Files that native code reads are not seen.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sizing.child.launch import CHILD
from sizing.files.database import cache_folder
from sizing.tracer.dependencies import digest

MOST = 500
"""The number of answers to keep; the oldest are deleted beyond that."""

_FOLDER = "traces"
_KINDS = ("files", "folders", "environ")
_OF_PYTHON = ("PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")
"""Prefixes of variables that say where modules and libraries come from, before a step is run."""
_NOT_KEPT = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)  # RuntimeError: no home folder
_CODE = (CHILD.parent / "model", Path(__file__).parent, CHILD)


class CachedAnswer:
    """The cached answer to one request, if there is one."""

    def __init__(self, python: str, request: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """`request["path"]` is the user's file; `env` is added to the process's environment."""
        self._environ = {**os.environ, **env}
        self._asked = shutil.which(python) or python, dict(request)
        self._name = self._found()

    def read(self) -> bytes | None:
        """Return the cached answer if it is still valid, else None."""
        try:
            said = json.loads(self._file.read_bytes())
            files, folders, environ = (said[name] for name in _KINDS)
            same = (
                all(self._environ.get(name) == value for name, value in environ.items())
                and all(os.stat(name).st_mtime_ns == at_ns for name, at_ns in folders.items())
                and all(digest(name) == known for name, known in files.items())
            )
            return str(said["answer"]).encode() if same else None
        except _NOT_KEPT:
            return None

    def write(self, answer: bytes) -> None:
        """Store an answer with its dependencies; if it lists none, or the disk is full, nothing is stored."""
        with suppress(*_NOT_KEPT):
            depended = json.loads(answer)["depends"]
            kept = {**{name: dict(depended[name]) for name in _KINDS}, "answer": answer.decode()}
            if not self._name or self._found() != self._name:  # the script was changed meanwhile
                return
            file = self._file
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            part.write_text(json.dumps(kept))
            os.replace(part, file)
            _tidy(file.parent)

    @property
    def _file(self) -> Path:
        return cache_folder() / _FOLDER / f"{self._name}.json"

    def _found(self) -> str:
        """Return a hash of the request with the files as they are now; "" (do not cache) if they cannot be read."""
        python, request = self._asked
        variables = {name: value for name, value in self._environ.items() if name.startswith(_OF_PYTHON)}
        with suppress(*_NOT_KEPT):
            asked = [
                python,
                os.path.realpath(python),
                variables,
                os.getcwd(),
                _code(),
                digest(request["path"]),
                request,
            ]
            return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return ""


def _tidy(folder: Path) -> None:
    kept = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)  # includes leftover partial files
    for file in kept[: max(0, len(kept) - MOST)]:
        file.unlink(missing_ok=True)


@functools.cache
def _code() -> str:
    """Return a hash of the code that traces and reads traces, because another release may count differently."""
    found = hashlib.sha256()
    for path in sorted(path for folder in _CODE for path in folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
