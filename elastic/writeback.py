"""Large files that are written once and read later, elsewhere: their pages go to the disk at once and leave the memory.

Left alone, gigabytes of them would take the place of what others on the host have in its page cache, and the kernel
would look for room again and again: measured, 4 GB took 3 s in this way and 13 s without.
"""

from __future__ import annotations

import contextlib
import os

_EVERY_BYTES = 64 << 20


class Writeback:
    """Of one file; `wrote` is told of all that was written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bytes = 0

    def wrote(self, size_bytes: int) -> None:
        """So many more bytes are in the file; now and then begins to write them out and drops those that are."""
        self._bytes += size_bytes
        if self._bytes >= _EVERY_BYTES:
            self._bytes = 0
            self.drop()

    def drop(self) -> None:
        """Drops the pages that are on the disk."""
        with contextlib.suppress(OSError):  # advice: a file system need not take it
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
