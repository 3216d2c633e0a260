"""What a traced step depended on beside its own file: files that it read, its variables of the environment.

Whoever is told this can say later whether the step would still be the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

MARK = "BFT_TRACE"
"""The variable by which a child and what it starts are known."""

LARGE_BYTES = 2**20
"""Files that are larger are not read again to compare them: their size and time of change stand for them."""

_ELSEWHERE = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "sqlite3.connect"}
"""Events after which nothing is known: something else than a file has answered."""

_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
_OURS = os.path.dirname(os.path.realpath(__file__))
"""This package, whose code the parent knows."""


class _Environ(os._Environ[str]):
    """Remembers what it was asked for."""

    def __getitem__(self, key: str) -> str:
        _asked.add(key)
        return super().__getitem__(key)

    def copy(self) -> dict[str, str]:
        """Who copies all of it, for a process that it starts, has asked for none."""
        return {name: super(_Environ, self).__getitem__(name) for name in self}


_asked: set[str] = set()


def watched() -> Callable[[], dict[str, Any] | None]:
    """Begins to watch this process; what is returned tells what it has depended on, None where that is not known."""
    opened: set[str] = set()
    listed: set[str] = set()
    lost: list[str] = []

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and not args[2] & (os.O_WRONLY | os.O_RDWR):
            opened.add(args[0])
        elif event in ("os.listdir", "os.scandir") and isinstance(args[0], str):
            listed.add(args[0])
        elif event in _ELSEWHERE:
            lost.append(event)

    began_in = os.getcwd()
    sys.addaudithook(heard)
    os.environ.__class__ = _Environ

    def told() -> dict[str, Any] | None:
        # a path that is relative was meant from a folder that may have changed since
        if lost or (os.getcwd() != began_in and any(not os.path.isabs(name) for name in (*opened, *listed))):
            return None
        modules = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
        installed = _installed()
        known = tuple(f"{place}{os.sep}" for place in (*installed, _OURS)) + _OF_THE_SYSTEM
        # by the names that were used: a link may come to lead elsewhere
        files = {os.path.abspath(name) for name in {*opened, *modules} if name and not name.endswith(".pyc")}
        # Python's own import lists the folders that it looks into
        folders = {os.path.realpath(name) for name in listed} - {os.path.realpath(name) for name in sys.path}
        return {
            "files": {name: digest(name) for name in sorted(files) if not os.path.realpath(name).startswith(known)},
            "folders": {
                name: os.stat(name).st_mtime_ns
                for name in (*installed, *sorted(name for name in folders if not name.startswith(known)))
                if os.path.isdir(name)
            },
            "environ": {name: os.environ.get(name) for name in sorted(_asked - {MARK})},
        }

    return told


def _installed() -> tuple[str, ...]:
    """Where packages and Python itself are: a change of what is installed changes the folder."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return tuple(sorted(os.path.realpath(path) for path in found))


def digest(path: str) -> str:
    """What stands for a file's content, "" where there is no file; raises OSError."""
    if not os.path.isfile(path):
        return ""
    found = os.stat(path)
    if found.st_size > LARGE_BYTES:
        return f"{found.st_size} {found.st_mtime_ns}"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
