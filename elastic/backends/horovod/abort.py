"""The way out of a hung collective: shut the sockets that hvd.init opened, so that all survivors get an error at once.

Only the ring neighbours of a dead rank notice it; the others would wait for gloo's time-out, seconds to half a minute.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from elastic.base.errors import EXIT_LINK_LOST
from elastic.base.timing import ABORTED_S


def connected_sockets() -> dict[int, int]:
    """Return the connected TCP sockets of this process: file descriptor -> inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            about = os.fstat(int(name))
            # Check first: a socket object that cannot be made from a file would leave the copy of its descriptor open.
            if not stat.S_ISSOCK(about.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
                    sock.getpeername()
                    found[int(name)] = about.st_ino
    return found


class SocketWatch:
    """The sockets that were opened inside `opening()`, which another thread can shut."""

    def __init__(self) -> None:
        self._sockets: dict[int, int] = {}
        self.openings = 0
        """The number of entries into `opening`: a worker that enters it again has left the call that it waited in."""

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Treat every socket that is connected inside the block as gloo's."""
        self._sockets = {}
        self.openings += 1
        before = connected_sockets()
        yield
        self._sockets = {fd: inode for fd, inode in connected_sockets().items() if before.get(fd) != inode}

    def forget(self) -> None:
        """Forget the sockets, which are being closed in order: their numbers may soon belong to other files."""
        self._sockets = {}

    def shut(self) -> int:
        """Shut the sockets down in both directions; returns how many there were."""
        count = 0
        for fd, inode in list(self._sockets.items()):
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    with socket.socket(fileno=os.dup(fd)) as sock:
                        sock.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count


def end_if_stuck(sockets: SocketWatch, last_words: Callable[[], None]) -> None:
    """End this process, to be started again, if its collective does not fail; for a thread of its own after an abort.

    When gloo's sockets are shut, Horovod's own thread leaves its loop and calls ncclCommAbort for each communicator,
    which ends the kernels that wait for the dead peer. That does not help if that thread itself is in ncclCommInitRank,
    nor if the device or its driver hangs. Only the end of the process helps there, and the others go on.

    A script that computes or reads has not noticed the abort yet, and one that has noticed it starts over by itself.
    """
    openings = sockets.openings
    time.sleep(ABORTED_S)
    if sockets.openings != openings or not _waits(threading.main_thread()):
        return
    os.write(2, f"bft: NCCL did not let go within {ABORTED_S:g} s of an abort; this worker is started again\n".encode())
    words = threading.Thread(target=last_words, daemon=True)
    words.start()
    words.join(ABORTED_S)
    # Skip the end of Python and of the library: both would wait for the device.
    os._exit(EXIT_LINK_LOST)


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread is in a call of Horovod's library."""
    import horovod  # here, as sockets are shut without it too

    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.startswith(str(Path(horovod.__file__).parent))
