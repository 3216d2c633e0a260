"""A folder on the node for workers' $TMPDIR: workers are always killed, so they never clean up themselves.

It is locked as long as its agent lives. An unlocked folder belongs to a dead agent, and the user's next agent on the
node sweeps it, in a process of its own that delays nothing. So an agent that leaves removes what it can in a moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path

from elastic.base.timing import SCRATCH_S
from elastic.link.child_process import die_with_parent
from elastic.node.shared_memory import remove_noted

# A temporary folder may be on a file system that nodes share while each node has locks of its own.
_PREFIX = f"bft-agent-{os.uname().nodename}-"
_IDLE_PRIORITY = 19

_LARGE_BYTES = 64 << 20
"""Files above this size are left to the next agent: a removal cannot be interrupted, and one of this size takes some 10
ms."""


class Scratch:
    """A fresh folder, locked as long as its process lives; `path` is for $TMPDIR."""

    def __init__(self) -> None:
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            # Until it is locked another process may sweep it, even before it is open.
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            # Where locks fail, no other agent can take the folder for a dead agent's either.
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.path.exists(self.path):
                return
            os.close(self._fd)

    def sweep(self) -> None:
        """Start to remove the folders of dead agents, in a process of low priority that ends with this one.

        Call it before any thread is started.
        """
        if not list(_folders()) or os.fork():
            return
        try:
            os.close(self._fd)  # else the lock would outlive the agent until this process ends too
            die_with_parent()
            os.setpriority(os.PRIO_PROCESS, 0, _IDLE_PRIORITY)
            sweep()
        finally:
            os._exit(0)

    def leave(self, killed: Collection[int] = ()) -> None:
        """Remove as much of the folder, and of the shared memory noted in it, as is possible within `SCRATCH_S`.

        The rest is left to the next agent. `killed` processes count as gone, even if the kernel is not done with them.
        """
        deadline_s = time.monotonic() + SCRATCH_S
        # In a thread, so that a file system that hangs cannot hold the agent.
        removing = threading.Thread(target=self._remove, args=(deadline_s, killed), daemon=True)
        removing.start()
        removing.join(SCRATCH_S)

    def _remove(self, deadline_s: float, killed: Collection[int]) -> None:
        remove_noted(self.path, deadline_s, killed)
        _Removal(self.path, deadline_s).run()


def sweep() -> None:
    """Remove the folders of this user's dead agents, as far as possible."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.getuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_noted(str(folder))
                    _Removal(str(folder)).run()
            finally:
                os.close(fd)


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))


class _OutOfTime(Exception):
    """The agent has to leave."""


class _Removal:
    """The removal of a folder. It never follows links or enters mounts, and opens folders that a script has closed."""

    def __init__(self, path: str, deadline_s: float | None = None) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._mounted = _mount_points()

    def run(self) -> None:
        """Remove the folder; returns without an error if the time is over or something cannot be removed."""
        with contextlib.suppress(OSError, RecursionError, _OutOfTime):
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                self._empty(fd, os.path.realpath(self._path))
            finally:
                os.close(fd)
            os.rmdir(self._path)

    def _empty(self, fd: int, path: str) -> None:
        # Some file systems omit entries from a listing while others are being removed.
        while self._removed_some(fd, path):
            pass

    def _removed_some(self, fd: int, path: str) -> bool:
        removed = False
        with os.scandir(fd) as entries:
            for entry in entries:
                if self._deadline_s is not None and time.monotonic() > self._deadline_s:
                    raise _OutOfTime
                inner = f"{path}/{entry.name}"
                if inner in self._mounted:
                    continue
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        self._remove_folder(fd, entry.name, inner)
                    elif self._deadline_s is not None and _is_large(fd, entry.name):
                        continue
                    else:
                        os.unlink(entry.name, dir_fd=fd)
                    removed = True
        return removed

    def _remove_folder(self, above: int, name: str, path: str) -> None:
        try:
            fd = _opened(above, name)
        except PermissionError:
            os.chmod(name, stat.S_IRWXU, dir_fd=above)
            fd = _opened(above, name)
        try:
            if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.fchmod(fd, stat.S_IRWXU)
            self._empty(fd, path)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=above)


def _opened(above: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)


def _is_large(fd: int, name: str) -> bool:
    return os.stat(name, dir_fd=fd, follow_symlinks=False).st_size > _LARGE_BYTES


def _mount_points() -> set[str]:
    """Return the mount points that this process sees."""
    fields = [line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    # Blanks and the like are written as in C: \040.
    return {os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field)) for field in fields}
