"""Dependencies of a traced step beside its own file: files, folders, and environment variables.

From them a cache can tell later whether the step would still be the same. If they cannot be known, none are reported.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

MARK = "BFT_TRACE"
"""The environment variable that marks a child and the processes that it starts."""

LARGE_BYTES = 2**20
"""Files larger than this are compared by size and modification time, not by content."""

MOST = 2000
"""The most files and folders to report; for a step with more, no dependencies are reported."""

_ELSEWHERE = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "sqlite3.connect"}
"""Audit events after which dependencies are unknown, because something other than a file gave an answer."""

_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/")
_OURS = os.path.dirname(os.path.realpath(__file__))
"""This package, whose code is already part of the cache key."""

_IMPORTING = "<frozen importlib"
"""The start of the file name of Python's import code, which lists the folders of modules."""


class _Environ(os._Environ[str]):
    """An environment that records the variables read, each with its first value: the script may set it later."""

    def __getitem__(self, key: str) -> str:
        try:
            value = super().__getitem__(key)
        except KeyError:
            _asked.setdefault(key, None)
            raise
        _asked.setdefault(key, value)
        return value

    def copy(self) -> dict[str, str]:
        """Copy all variables, for example for a new process; this does not count as reading them."""
        return {name: super(_Environ, self).__getitem__(name) for name in self}


_asked: dict[str, str | None] = {}


class _Watch:
    """The files and folders that this process has opened, listed or looked for since the watch began."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()
        self.lost = False
        self._began_s = time.time()
        self._folder = os.getcwd()
        sys.addaudithook(self._heard)
        sys.meta_path.append(self)
        for name in ("stat", "lstat", "access"):
            setattr(os, name, self._looking(getattr(os, name)))
        os.environ.__class__ = _Environ

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Record the files whose creation would make a missing module importable; other finders are asked first."""
        last = name.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            place = os.path.join(folder or ".", last)
            self.files.update((f"{place}.py", os.path.join(place, "__init__.py")))

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and not args[2] & (os.O_WRONLY | os.O_RDWR):
            self.files.add(args[0])
        elif event in ("os.listdir", "os.scandir"):
            if not sys._getframe(1).f_code.co_filename.startswith(_IMPORTING):
                self.folders.add(args[0] if isinstance(args[0], str) else ".")
        elif event in _ELSEWHERE:
            self.lost = True

    def _looking(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str):
                self.files.add(path)
            return usual(path, *args, **kwargs)

        return look

    def told(self) -> dict[str, Any] | None:
        """Return files with digests, folders with modification times, and variables with values; None if unknown."""
        relative = not all(map(os.path.isabs, (*self.files, *self.folders)))
        if self.lost or (relative and os.getcwd() != self._folder):  # a path may be relative to another folder
            return None
        installed = _installed()
        known = tuple(f"{place}{os.sep}" for place in (*installed, _OURS)) + _OF_THE_SYSTEM

        def own(names: set[str]) -> list[str]:
            absolute = {os.path.abspath(name) for name in names if name}
            return sorted(name for name in absolute if not _real(name).startswith(known))

        modules = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
        # by the names that were used, because a link may later point elsewhere
        files = own({name for name in self.files | modules if not name.endswith(".pyc")})
        folders = [name for name in (*installed, *own(self.folders)) if os.path.isdir(name)]
        # of a folder that was only looked for, its time says nothing: others may have made a file in it
        changed_s = [os.stat(name).st_mtime for name in (*filter(os.path.isfile, files), *folders)]
        if len(files) + len(folders) > MOST or max(changed_s, default=0.0) >= self._began_s:
            return None
        return {
            "files": {name: digest(name) for name in files},
            "folders": {name: os.stat(name).st_mtime_ns for name in folders},
            "environ": {name: value for name, value in sorted(_asked.items()) if name != MARK},
        }


def watched() -> Callable[[], dict[str, Any] | None]:
    """Begin to watch this process; returns a function that returns its dependencies, or None if they are unknown."""
    watch = _Watch()

    def told() -> dict[str, Any] | None:
        try:
            return watch.told()
        except Exception:  # the trace is still good, only it cannot be cached
            return None

    return told


def _installed() -> tuple[str, ...]:
    """Return the folders of packages and of Python itself; installing something changes its folder."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return tuple(sorted(os.path.realpath(path) for path in found))


def _real(path: str) -> str:
    """Return an absolute path without symbolic links; it asks the system for the links of each folder once."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder), name)


@functools.cache
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def digest(path: str) -> str:
    """Return a digest of a path: a hash (or size and time) of a file, "folder", or "" if nothing is there.

    Raises OSError.
    """
    if not os.path.isfile(path):
        return "folder" if os.path.isdir(path) else ""
    found = os.stat(path)
    if found.st_size > LARGE_BYTES:
        return f"{found.st_size} {found.st_mtime_ns}"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
