"""A checkpoint's file as it grows: a part without a checkpoint's name until it is whole and on the disk."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import BinaryIO

from elastic.checkpoint.writeback import Writeback
from elastic.store import files
from elastic.store.folder import Place, UnsafeFolderError


class Upload:
    """A file that grows as a worker's checkpoint arrives; its methods run in the store's threads, one at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._name = ""
        self._file: BinaryIO | None = None
        self._over = False
        self._turn = threading.Lock()

    def write(self, chunk: bytes | memoryview) -> None:
        """Appends; raises OSError."""
        with self._turn:
            if self._over:
                raise OSError(errno.ECANCELED, "the worker is gone")
            if self._file is None:
                with self._place.opened() as folder:
                    self._name, self._file = files.create_part(folder)
                self._writeback = Writeback(self._file.fileno())
            files.write_all(self._file, chunk)
            self._writeback.wrote(len(chunk))

    def finish(self) -> None:
        """Flushes all of it to the disk; raises OSError."""
        with self._turn:
            assert self._file is not None
            files.sync_and_close(self._file)

    def publish(self, folder: int, name: str) -> None:
        """Gives the file its name; raises OSError."""
        with self._turn:
            files.publish(folder, self._name, name)
            self._name = ""

    def discard(self) -> None:
        """Removes the file unless it was published."""
        with self._turn, contextlib.suppress(OSError, UnsafeFolderError):
            self._over = True
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            if self._name:
                with self._place.opened() as folder:
                    files.remove(folder, self._name)
