"""Errors of traces and of the files they are made from."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bftd.base.errors import UsageError


class TraceError(UsageError):
    """A trace, or a file it is made from, cannot be used; the message names the file and the line, if known."""


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Raise TraceError if the block meets an incomplete, broken or endless gzip file."""
    try:
        yield
    except EOFError:
        raise TraceError(f"{path} is a gzip file that is cut short: copy it again") from None
    except OverflowError:
        raise TraceError(f"{path} unpacks to more than any trace has: is it one?") from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"{path} is not a whole gzip file: {error}") from None
