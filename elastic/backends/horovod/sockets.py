"""Breaks a hung collective: shuts the sockets that hvd.init opened, so that every survivor gets an error at once.

Only the ring neighbours of a dead rank notice it; the others would wait for gloo's time-out, seconds to half a minute.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


def connected_sockets() -> dict[int, int]:
    """The connected TCP sockets of this process: file descriptor -> inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            about = os.fstat(int(name))
            # Asked first: a socket object that cannot be made of a file would leave the copy of its descriptor behind.
            if not stat.S_ISSOCK(about.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
                    sock.getpeername()
                    found[int(name)] = about.st_ino
    return found


class SocketWatch:
    """Knows the sockets that were opened inside `opening()` and can shut them from another thread."""

    def __init__(self) -> None:
        self._sockets: dict[int, int] = {}
        self.openings = 0
        """How often `opening` was entered: a worker that enters it again has got out of what it waited in."""

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Takes every socket that is connected inside the block for gloo's."""
        self._sockets = {}
        self.openings += 1
        before = connected_sockets()
        yield
        self._sockets = {fd: inode for fd, inode in connected_sockets().items() if before.get(fd) != inode}

    def forget(self) -> None:
        """The sockets are being closed in order: their numbers may soon be somebody else's."""
        self._sockets = {}

    def shut(self) -> int:
        """Shuts the sockets down in both directions and returns how many there were."""
        count = 0
        for fd, inode in list(self._sockets.items()):
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    with socket.socket(fileno=os.dup(fd)) as sock:
                        sock.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count
