"""A folder on the node for what workers leave in $TMPDIR: they are always killed, so they never clean up themselves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "bft-agent-"


class Scratch:
    """A fresh folder, locked as long as its process lives; those of processes that were killed are swept first."""

    def __init__(self) -> None:
        _sweep()
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            # Until it is locked another process may sweep it, also before it is open.
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.path.exists(self.path):
                return
            os.close(self._fd)

    def remove(self) -> None:
        """Removes the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.getuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)
