"""Files in an open folder: written whole or not at all, and on the disk when a call returns."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from typing import Any, BinaryIO

PART = ".part"
"""The suffix of a file that is not whole yet; those that a killed process has left are swept."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTE_BYTES = 65536


def create_part(folder: int) -> tuple[str, BinaryIO]:
    """Creates a file for its user alone, with a random name; returns the name and the file."""
    name = f"{secrets.token_hex(8)}{PART}"
    return name, os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb", buffering=0)


def open_old(folder: int, name: str) -> BinaryIO:
    """Opens a file for reading, but never the target of a link."""
    return os.fdopen(os.open(name, _OLD, dir_fd=folder), "rb")


def write(folder: int, name: str, content: bytes) -> None:
    """Writes a file in place of an older one of its name; raises OSError, with nothing changed."""
    part, file = create_part(folder)
    try:
        with file:
            write_all(file, content)
            os.fsync(file.fileno())
        publish(folder, part, name)
    except BaseException:
        remove(folder, part)
        raise


def write_all(file: BinaryIO, content: bytes | memoryview) -> None:
    """Writes everything to an unbuffered file, which may take less than it is given."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def sync_and_close(file: BinaryIO) -> None:
    """Flushes a file to the disk; raises OSError, which some file servers report only at the end."""
    os.fsync(file.fileno())
    file.close()


def publish(folder: int, part: str, name: str) -> None:
    """Gives a whole file, already on the disk, its name."""
    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def remove(folder: int, name: str) -> None:
    """Removes a file; if that fails now, it is swept later."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def decoded(content: bytes) -> Any:
    """Decodes JSON; raises ValueError, also for JSON that is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_note(folder: int, name: str) -> dict[str, Any] | None:
    """Reads a small JSON object, None if there is no such file; raises OSError, and ValueError for other content."""
    try:
        file = open_old(folder, name)
    except FileNotFoundError:
        return None
    with file:
        note = decoded(file.read(_NOTE_BYTES))
    if not isinstance(note, dict):
        raise ValueError(f"{name} holds no JSON object")
    return note


def share(source: int, name: str, target: int, new_name: str) -> None:
    """Adds a file of another folder to this one: as a hard link, or as a copy."""
    try:
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.fsync(target)
        return
    except FileExistsError:
        return
    except OSError:
        pass  # another file system, or one without hard links
    part, copy = create_part(target)
    try:
        with copy, open_old(source, name) as original:
            shutil.copyfileobj(original, copy, 1 << 20)
            os.fsync(copy.fileno())
        publish(target, part, new_name)
    except BaseException:
        remove(target, part)
        raise
