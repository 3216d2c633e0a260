"""The files that a job reads: their size, and a sample of them to measure the disk with."""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sizing.base.errors import UsageError

_KEPT = 20_000  # files remembered by name: enough to measure with, and a few MB of memory


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files below some paths: their number and bytes, and up to 20,000 of them, drawn evenly, with their bytes.

    `whole` says whether all were counted within the time; if not, there are more. `unread` are folders that could not
    be read, as (path, reason), at most ten.
    """

    count: int
    size_bytes: int
    some: tuple[tuple[str, int], ...]
    whole: bool
    unread: tuple[tuple[str, str], ...] = ()


def find(paths: Sequence[Path], limit_s: float = 20.0) -> DataFiles:
    """Count the regular files at and below some paths, each once, following links, for at most `limit_s`.

    Folders and hard links count once whatever their number; beyond 20,000 files, those that symbolic links name again
    count again. Raises UsageError if a path does not exist, or if there is no file with any data.
    """
    over = time.monotonic() + limit_s
    draw = random.Random(0)
    some: list[tuple[str, int]] = []
    count = size_bytes = 0
    whole = True
    unread: list[tuple[str, str]] = []
    for path, size in _regular(paths, unread):
        count += 1
        size_bytes += size
        if len(some) < _KEPT:
            some.append((path, size))
        elif (at := draw.randrange(count)) < _KEPT:
            some[at] = (path, size)
        if time.monotonic() > over:
            whole = False
            break
    if not size_bytes:
        reason = f"; {unread[0][0]}: {unread[0][1]}" if unread else ""
        named = ", ".join(map(str, paths)) or "no path"
        raise UsageError(f"no file with data in {named}{reason}: name the files or folders that the job reads")
    return DataFiles(count, size_bytes, tuple(some), whole, tuple(unread[:10]))


def _regular(paths: Sequence[Path], unread: list[tuple[str, str]]) -> Iterator[tuple[str, int]]:
    """Yield the non-empty files and their bytes; add unreadable folders to `unread`."""
    seen: set[tuple[int, int]] = set()
    folders: list[str] = []
    for path in paths:
        try:
            about = path.stat()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; name the files that the job reads") from None
        yield from _one(str(path), about, seen, folders)
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        about = entry.stat()
                    except OSError:
                        continue  # a dangling link, or removed meanwhile
                    yield from _one(entry.path, about, seen, folders)
        except OSError as error:
            unread.append((folder, error.strerror or str(error)))


def _one(path: str, about: os.stat_result, seen: set[tuple[int, int]], folders: list[str]) -> Iterator[tuple[str, int]]:
    is_folder = stat.S_ISDIR(about.st_mode)
    if is_folder or (stat.S_ISREG(about.st_mode) and about.st_size):
        if is_folder or about.st_nlink > 1 or len(seen) < _KEPT:
            if (about.st_dev, about.st_ino) in seen:
                return
            seen.add((about.st_dev, about.st_ino))
        if is_folder:
            folders.append(path)
        else:
            yield path, about.st_size
