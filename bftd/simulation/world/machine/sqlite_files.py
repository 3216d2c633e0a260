"""SQLite's files on the disks of simulated processes, by the system calls that SQLite lets a test replace.

Its flushes are no such calls. They are where its documents say: each comes before a write that is seen, or before the
end of a statement. See https://sqlite.org/atomiccommit.html and https://sqlite.org/wal.html.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, ClassVar
from unittest import mock

from bftd.simulation.world.machine.disk import Disk, on_disk
from bftd.simulation.world.machine.processes import Killed


@contextmanager
def simulated_sqlite() -> Iterator[None]:
    """Have SQLite write the files of simulated processes through their disks."""
    connect = partial(sqlite3.connect, factory=_Connection)
    with mock.patch.object(sqlite3, "connect", connect), _Calls.replaced():
        yield


class _Connection(sqlite3.Connection):
    """A connection of a simulated process: a statement in which it was killed never returns."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        acting = on_disk()
        self._process = None if acting is None else acting[0]
        if self._process is not None:
            self._process.on_kill.append(self._let_go)

    def _let_go(self) -> None:
        """Close the files of a killed process as the kernel does: nothing is written."""
        assert self._process is not None
        with suppress(Killed):
            self._process.run(super().close)

    def close(self) -> None:
        """See sqlite3."""
        super().close()
        if self._process is not None and self._let_go in self._process.on_kill:
            self._process.on_kill.remove(self._let_go)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """See sqlite3."""
        return self._made(super().execute, *arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        """See sqlite3."""
        return self._made(super().executescript, *arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """See sqlite3."""
        return self._made(super().executemany, *arguments)

    def _made(self, make: Callable[..., sqlite3.Cursor], *arguments: Any) -> sqlite3.Cursor:
        acting = on_disk()
        try:
            made = make(*arguments)
        finally:
            if acting is not None and acting[0].dead:
                raise Killed
        if acting is not None and not self.in_transaction:
            _Calls.settled(acting[1])
        return made


_PWRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
_UNLINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, use_errno=True)
_GET = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Vfs(ctypes.Structure):
    """The beginning of sqlite3_vfs, up to the functions that replace system calls (version 3)."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_most", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 13),
        ("set_call", _SET),
        ("get_call", _GET),
    )


class _Calls:
    """SQLite's own system calls, in place of which those of a simulated disk are made."""

    _written: ClassVar[list[str]] = []

    @classmethod
    @contextmanager
    def replaced(cls) -> Iterator[None]:
        """Replace them meanwhile."""
        vfs = _unix()
        kept = []
        for name, make in ((b"pwrite", cls._pwrite), (b"pwrite64", cls._pwrite)):
            if (real := vfs.get_call(ctypes.addressof(vfs), name)) is not None:
                kept.append((name, _PWRITE(partial(make, _PWRITE(real)))))
        real = vfs.get_call(ctypes.addressof(vfs), b"unlink")
        kept.append((b"unlink", _UNLINK(partial(cls._unlink, _UNLINK(real)))))
        for name, call in kept:
            vfs.set_call(ctypes.addressof(vfs), name, ctypes.cast(call, ctypes.c_void_p))
        try:
            yield
        finally:
            for name, _ in kept:
                vfs.set_call(ctypes.addressof(vfs), name, None)

    @classmethod
    def _pwrite(cls, real: Callable[..., int], fd: int, buffer: int, size_bytes: int, at: int) -> int:
        acting = on_disk()
        if acting is None:
            return real(fd, buffer, size_bytes, at)
        process, disk = acting
        if process.dead:
            ctypes.set_errno(errno.EIO)
            return -1
        name = os.readlink(f"/proc/self/fd/{fd}")
        if not name.endswith(("-wal", "-journal")):
            for log in (f"{name}-wal", f"{name}-journal"):
                disk.forget_path(log)  # it is flushed before a page of the file itself is written
            cls._written.append(name)
        elif name.endswith("-wal") and at == 32:
            disk.forget_path(name)  # and the head of a log before its first page

        def write(data: bytes) -> int:
            return real(fd, buffer, len(data), at)

        try:
            return disk.write(process, fd, ctypes.string_at(buffer, size_bytes), at, write)
        except Killed:
            ctypes.set_errno(errno.EIO)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
        return -1

    @classmethod
    def _unlink(cls, real: Callable[..., int], path: bytes) -> int:
        if (acting := on_disk()) is None:
            return real(path)
        process, disk = acting
        if process.dead:
            ctypes.set_errno(errno.EIO)
            return -1
        where = os.fsdecode(path)
        disk.forget_path(where)
        disk.forget_changes(os.path.dirname(where))  # SQLite flushes the folder of a journal that it removes
        return real(path)

    @classmethod
    def settled(cls, disk: Disk) -> None:
        """Note that a statement is over: a file that a log was written back to is flushed by then."""
        while cls._written:
            disk.forget_path(cls._written.pop())


@lru_cache(maxsize=1)
def _unix() -> _Vfs:
    import _sqlite3

    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        find = library.sqlite3_vfs_find
    except AttributeError:
        find = ctypes.CDLL(ctypes.util.find_library("sqlite3")).sqlite3_vfs_find
    find.restype = ctypes.POINTER(_Vfs)
    vfs: _Vfs = find(b"unix").contents
    assert vfs.version >= 3
    return vfs
