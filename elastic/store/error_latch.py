"""Reports of a failure and of its end, once each, however many tries come in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

_HINTS = {
    errno.ENOSPC: "no space is left; free some there",
    errno.EDQUOT: "your quota is used up; free space there",
    errno.ESTALE: "the file server does not know it any more (stale file handle)",
    errno.EROFS: "the file system is read-only",
}

FILE_SYSTEMS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of the file system itself: no host is at fault, and it may work again."""


class ErrorLatch:
    """A possible failure of some duration; `tell` gets each change."""

    def __init__(self, tell: Callable[[str], None], better: str) -> None:
        """`better`: the text to report when it works again."""
        self._tell = tell
        self._better = better
        self._is = False

    @property
    def present(self) -> bool:
        """Whether the last try failed."""
        return self._is

    def came(self, text: str) -> None:
        """Notes a failure, and reports it if it is new."""
        if not self._is:
            self._is = True
            self._tell(text)

    def went(self) -> None:
        """Notes a success, and reports it after a failure."""
        if self._is:
            self._is = False
            self._tell(self._better)


def text_of(error: BaseException) -> str:
    """Returns the reason of an error in a few words."""
    if isinstance(error, OSError) and error.errno is not None:
        return _HINTS.get(error.errno) or error.strerror or os.strerror(error.errno)
    return str(error)
