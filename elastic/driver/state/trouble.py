"""Telling that something fails once, and once that it works again, however often it is tried in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

_HINTS = {
    errno.ENOSPC: "no space is left; make room there",
    errno.EDQUOT: "your quota is used up; make room there",
    errno.ESTALE: "the file server does not know it any more (stale file handle)",
    errno.EROFS: "the file system is read-only",
}

FILE_SYSTEMS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a file system says of itself: no host is at fault, and it may work again."""


class Trouble:
    """One thing that may fail for a while; `tell` gets each change."""

    def __init__(self, tell: Callable[[str], None], better: str) -> None:
        """`better`: what is told when it works again."""
        self._tell = tell
        self._better = better
        self._is = False

    @property
    def present(self) -> bool:
        """Whether it failed the last time."""
        return self._is

    def came(self, text: str) -> None:
        """It failed."""
        if not self._is:
            self._is = True
            self._tell(text)

    def went(self) -> None:
        """It worked."""
        if self._is:
            self._is = False
            self._tell(self._better)


def text_of(error: BaseException) -> str:
    """Why, in a few words."""
    if isinstance(error, OSError) and error.errno is not None:
        return _HINTS.get(error.errno) or error.strerror or os.strerror(error.errno)
    return str(error)
