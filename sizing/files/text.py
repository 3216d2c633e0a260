"""Texts that a user names: a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from sizing.base.errors import UsageError

_MOST_BYTES = 16 * 2**20
"""The limit for a file of GPUs or plans.

The file for ten thousand nodes, each a group of its own, takes a quarter of it.
"""


def text_of(path: str) -> str:
    """Return the text of a file, or of standard input for "-"; raises UsageError."""
    where = "standard input" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{where} has more than {_MOST_BYTES >> 20} MiB: no file that sizing reads is so large")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
