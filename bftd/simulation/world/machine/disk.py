"""The disks of simulated processes: real files, whose operations fail, fill up, tear, or are lost with their host.

An operation on a file by a simulated process goes through its `disk`; for SQLite's see `sqlite_files`. The disk knows
what was written but not flushed, and a loss of power undoes parts of it: of files any writes, torn at a sector, and of
folders the newest changes.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from bftd.ledger import filesystem
from bftd.simulation.world.machine.fibers import Fiber
from bftd.simulation.world.machine.processes import Killed, Process, process_or_none

DISKS = LEDGER, HOME = "ledger", "home"
"""The disks: the daemon's, and that of all users."""

_SECTOR_BYTES = 512
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FAILS_SHARE = 0.5
"""The share of the operations that a failing disk refuses."""

_real_open, _real_fdopen, _real_stat, _real_fstat = os.open, os.fdopen, os.stat, os.fstat


@dataclass
class _Unflushed:
    """The writes to a file since it was flushed: offsets with the bytes that were there before."""

    fd: int
    before: list[tuple[int, bytes, int]] = field(default_factory=list)

    def undo(self, random: Random) -> None:
        """Lose some of it, as a host does that loses its power."""
        for at, old, written_bytes in reversed(self.before):
            fate = random.random()
            if fate < 0.4:
                continue
            lost = 0 if fate < 0.8 else _SECTOR_BYTES * random.randint(0, written_bytes // _SECTOR_BYTES)
            os.pwrite(self.fd, old.ljust(written_bytes, b"\0")[lost:], at + lost)
            if os.fstat(self.fd).st_size <= at + written_bytes:
                os.ftruncate(self.fd, at + max(lost, len(old)))


class Disk:
    """The disk of some processes. `full`, `failing` and `slow` (a factor) are its troubles.

    With `kill_in`, the process that makes the operation after so many more is killed in the midst of it.
    """

    def __init__(self, random: Random) -> None:
        self.full = self.failing = False
        self.slow = 1.0
        self.kill_in: int | None = None
        self.errors = 0
        self.boots = 1
        self._random = random
        self._unflushed: dict[int, _Unflushed] = {}
        self._changes: list[tuple[int, Callable[[], None]]] = []
        """Changes of folders that were not flushed: the folder's number, and how each is undone."""
        self._times_ns: dict[int, tuple[int, int]] = {}
        """The times of the last changes of a file's content and of the file itself, by its number."""
        self._now_ns = 0

    @property
    def in_trouble(self) -> bool:
        """Whether operations fail now."""
        return self.full or self.failing

    def recover(self) -> None:
        """End all troubles."""
        self.full, self.failing, self.slow, self.kill_in = False, False, 1.0, None

    def lose_power(self) -> None:
        """Lose what was not flushed, or parts of it; all processes of the disk have to be dead."""
        self.boots += 1
        kept = self._random.randint(0, len(self._changes))
        for _, undo in reversed(self._changes[kept:]):
            undo()
        for file in self._unflushed.values():
            file.undo(self._random)
        self._forget_all()

    def _forget_all(self) -> None:
        self._changes.clear()
        while self._unflushed:
            os.close(self._unflushed.popitem()[1].fd)

    def close(self) -> None:
        """Forget what was not flushed: the simulation ends."""
        self._forget_all()

    # -- every operation goes through one of these ---

    def begin(self, process: Process, *, grows: bool) -> bool:
        """Let an operation begin; returns whether the process dies in its midst.

        Raises Killed in a dead process, and the disk's OSError.
        """
        if process.dead:
            raise Killed
        self._may_fail()
        if self.full and grows:
            self.errors += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kill_in is None:
            return False
        self.kill_in -= 1
        if self.kill_in >= 0:
            return False
        self.kill_in = None
        return True

    def read(self, process: Process) -> None:
        """Let a file be opened for reading; raises as `begin` does."""
        if process.dead:
            raise Killed
        self._may_fail()

    def _may_fail(self) -> None:
        if self.failing and self._random.random() < _FAILS_SHARE:
            self.errors += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def change(self, process: Process, work: Callable[[], Any], *, grows: bool = False) -> Any:
        """Make a change that happens as a whole or not at all."""
        if self.begin(process, grows=grows):
            if self._random.random() < 0.5:
                work()
            process.kill_here()
            raise Killed
        return work()

    def write(self, process: Process, fd: int, data: bytes, at: int, write: Callable[[bytes], int]) -> int:
        """Write to a file at an offset; `write` does it. A process that is killed may have written a part."""
        dies = self.begin(process, grows=True)
        if dies:
            data = data[: self._random.randint(0, len(data))]
        self._note_write(fd, at, len(data))
        written = write(data) if data else 0
        if dies:
            process.kill_here()
            raise Killed
        return written

    def _note_write(self, fd: int, at: int, size_bytes: int) -> None:
        number = _real_fstat(fd).st_ino
        self.note_time(number)
        if number not in self._unflushed:
            self._unflushed[number] = _Unflushed(_real_open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))
        file = self._unflushed[number]
        file.before.append((at, os.pread(file.fd, size_bytes, at), size_bytes))

    def note_change(self, folder: int, undo: Callable[[], None]) -> None:
        """Note a change of a folder, by its number, that is not flushed yet."""
        self._changes.append((folder, undo))
        self.note_time(folder)

    def note_time(self, number: int, *, content: bool = True) -> None:
        """Note that a file, or what is in it, is changed now."""
        # Code takes no simulated time, and no two changes are made at once.
        self._now_ns = now_ns = max(int(time.time() * 1e9), self._now_ns + 1)
        self._times_ns[number] = now_ns if content else self._times_ns.get(number, (now_ns, 0))[0], now_ns

    def dated(self, found: os.stat_result) -> os.stat_result:
        """Return what is known of a file with the times of this simulation, at the latest when it was first seen."""
        if found.st_ino not in self._times_ns:
            self.note_time(found.st_ino)
        of_content_ns, of_file_ns = self._times_ns[found.st_ino]
        times = {
            **{f"st_{name}": ns / 1e9 for name, ns in (("atime", 0), ("mtime", of_content_ns), ("ctime", of_file_ns))},
            **{"st_atime_ns": 0, "st_mtime_ns": of_content_ns, "st_ctime_ns": of_file_ns},
        }
        whole_s = 0, of_content_ns // 10**9, of_file_ns // 10**9
        return os.stat_result((*tuple(found)[:7], *whole_s), times)

    def restore(self, path: str, content: bytes, was: os.stat_result) -> None:
        """Put a file back as it was."""
        Path(path).write_bytes(content)
        os.chmod(path, was.st_mode & 0o777)
        self._times_ns[_real_stat(path).st_ino] = was.st_mtime_ns, was.st_ctime_ns

    def flushed(self, fd: int) -> None:
        """Note that a file or a folder was flushed."""
        self.forget(os.fstat(fd).st_ino)
        self.forget_changes(f"/proc/self/fd/{fd}")

    def forget_changes(self, folder: str) -> None:
        """Note that all changes of a folder are on the disk."""
        number = os.stat(folder).st_ino
        self._changes = [one for one in self._changes if one[0] != number]

    def forget(self, number: int) -> None:
        """Note that all that was written to a file is on the disk, or of no interest any more."""
        if (file := self._unflushed.pop(number, None)) is not None:
            os.close(file.fd)

    def forget_path(self, path: str | Path) -> None:
        """Do the same for the file at a path."""
        with suppress(FileNotFoundError):
            self.forget(os.stat(path).st_ino)


def _boot_id() -> str:
    acting = on_disk()
    return "" if acting is None else str(acting[1].boots)


def _sleep(real: Callable[[float], None], for_s: float) -> None:
    """Let a process wait for its disk, without the time passing unless a thread of it waits; others are refused."""
    if on_disk() is None or Fiber.current is not None:
        real(for_s)


def on_disk() -> tuple[Process, Disk] | None:
    process = process_or_none()
    return None if process is None or process.disk is None else (process, process.disk)


@contextmanager
def simulated_files() -> Iterator[None]:
    """Have the operations of simulated processes on files go through their disks."""
    with (
        mock.patch.object(os, "open", _open),
        mock.patch.object(os, "fdopen", _fdopen),
        mock.patch.object(os, "stat", partial(_dated, os.stat)),
        mock.patch.object(os, "fstat", partial(_dated, os.fstat)),
        mock.patch.object(os, "fsync", partial(_fsync, os.fsync)),
        mock.patch.object(os, "replace", partial(_rename, os.replace)),
        mock.patch.object(os, "rename", partial(_rename, os.rename)),
        mock.patch.object(os, "unlink", partial(_unlink, os.unlink)),
        mock.patch.object(os, "mkdir", partial(_mkdir, os.mkdir)),
        mock.patch.object(filesystem, "boot_id", _boot_id),
        mock.patch.object(time, "sleep", partial(_sleep, time.sleep)),
    ):
        yield


# -- files and folders ---


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    acting = on_disk()
    open_ = partial(_real_open, path, flags, mode, dir_fd=dir_fd)
    if acting is None:
        return open_()
    process, disk = acting
    if not flags & _WRITES:
        disk.read(process)
        return open_()
    makes = flags & os.O_CREAT and not _is_there(path, dir_fd)
    fd: int = disk.change(process, open_, grows=bool(makes))
    number = _real_fstat(fd).st_ino
    if makes or flags & os.O_TRUNC:
        disk.note_time(number)
    if flags & os.O_RDWR:
        process.on_kill.append(partial(_unlock, fd, number))
    if makes:
        folder = _folder(path, dir_fd)
        disk.note_change(os.stat(folder).st_ino, partial(_remove_quietly, f"{folder}/{os.path.basename(path)}"))
    return fd


def _dated(real: Callable[..., os.stat_result], *arguments: Any, **more: Any) -> os.stat_result:
    found = real(*arguments, **more)
    return found if (acting := on_disk()) is None else acting[1].dated(found)


def _unlock(fd: int, number: int) -> None:
    """Release the lock of a killed process on a file, if it has not closed it."""
    with suppress(OSError):
        if os.fstat(fd).st_ino == number:
            fcntl.flock(fd, fcntl.LOCK_UN)


class _File(io.FileIO):
    """A file that a simulated process writes to."""

    def write(self, data: Any) -> int:
        """See io."""
        acting, view = on_disk(), bytes(data)
        if acting is None:
            return super().write(view)
        process, disk = acting
        return disk.write(process, self.fileno(), view, self.tell(), super().write)


def _fdopen(fd: int, mode: str = "r", buffering: int = -1, *more: Any, **rest: Any) -> Any:
    if on_disk() is None or mode != "wb" or buffering != 0:
        return _real_fdopen(fd, mode, buffering, *more, **rest)
    return _File(fd, "wb")


def _fsync(real: Callable[[int], None], fd: int) -> None:
    if (acting := on_disk()) is None:
        return real(fd)
    process, disk = acting

    def flush() -> None:
        disk.flushed(fd)  # the files of the simulation need not outlive this process

    return disk.change(process, flush)  # type: ignore[no-any-return]


def _rename(real: Callable[..., None], source: Any, target: Any, **folders: Any) -> None:
    if (acting := on_disk()) is None:
        return real(source, target, **folders)
    process, disk = acting
    before, after = _path(source, folders.get("src_dir_fd")), _path(target, folders.get("dst_dir_fd"))
    old = _content(after)

    def undo() -> None:
        with suppress(FileNotFoundError):
            os.rename(after, before)
        if old is not None:
            disk.restore(after, *old)

    disk.change(process, partial(real, source, target, **folders))
    disk.note_time(_real_stat(after).st_ino, content=False)
    disk.note_change(os.stat(os.path.dirname(after)).st_ino, undo)


def _unlink(real: Callable[..., None], path: Any, *, dir_fd: int | None = None) -> None:
    if (acting := on_disk()) is None:
        return real(path, dir_fd=dir_fd)
    process, disk = acting
    where = _path(path, dir_fd)
    old = _content(where)
    disk.change(process, partial(real, path, dir_fd=dir_fd))
    if old is not None:
        disk.note_change(os.stat(os.path.dirname(where)).st_ino, partial(disk.restore, where, *old))


def _mkdir(real: Callable[..., None], path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    if (acting := on_disk()) is None:
        return real(path, mode, dir_fd=dir_fd)
    process, disk = acting
    if not _is_there(path, dir_fd):
        disk.change(process, partial(real, path, mode, dir_fd=dir_fd), grows=True)
        disk.note_time(_real_stat(path, dir_fd=dir_fd).st_ino)
    else:
        real(path, mode, dir_fd=dir_fd)


def _folder(path: Any, dir_fd: int | None) -> str:
    """Return the folder that a path is in, as it is found without a descriptor."""
    return os.path.dirname(path) or "." if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")


def _path(path: Any, dir_fd: int | None) -> str:
    return os.path.join(_folder(path, dir_fd), os.path.basename(path))


def _is_there(path: Any, dir_fd: int | None) -> bool:
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _content(path: str) -> tuple[bytes, os.stat_result] | None:
    """Return what is in a file, and its times; None for what is no file."""
    try:
        if not os.path.isfile(path):
            return None
        return Path(path).read_bytes(), os.stat(path)
    except FileNotFoundError:
        return None


def _remove_quietly(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
