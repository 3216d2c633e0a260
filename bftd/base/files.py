"""Files: JSON, whose faults are one line that names the place, and replacement by one rename."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bftd.base.errors import UsageError


def contents(path: Path, error: type[UsageError] = UsageError) -> bytes:
    """Return the bytes of a file; raise the error if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as fault:
        raise error(f"cannot read {path}: {fault.strerror}") from None


def decoded(raw: bytes, where: str, error: type[UsageError] = UsageError, **options: Any) -> Any:
    """Decode JSON; raise the error if it is none. `options` are those of `json.loads`."""
    try:
        return json.loads(raw.decode("utf-8-sig"), **options)
    except UnicodeDecodeError as fault:
        raise error(f"{where} is not UTF-8 text (byte {fault.start}): save it as UTF-8") from None
    except json.JSONDecodeError as fault:
        raise error(f"{where}, line {fault.lineno}, column {fault.colno}: not JSON: {fault.msg}") from None
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise error(f"{where} is nested too deeply, or has too long a number") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it once the block succeeds and all of it is on disk.

    It takes over the owner and the permissions of `path`. If the block fails, it is removed.
    """
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.umask(mask := os.umask(0o077))
        if target.exists():
            with suppress(PermissionError):
                os.chown(name, target.stat().st_uid, target.stat().st_gid)
        os.chmod(name, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~mask)
        os.replace(name, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
