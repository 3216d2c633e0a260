"""The speed at which data comes from the disk of a job's files, and from memory: measured here, within bounds.

The disk is read as shuffled training does: pieces of 1 MiB in random order, small files whole, by a few readers at a
time. Pieces are read around the page cache (O_DIRECT), which neither fills it nor evicts anything. If the file system
cannot do that, only pieces without any part in the cache are read, and dropped from it afterwards (other programs'
pages stay, ours go). If the cache has everything (or the files are in memory, as with tmpfs), reads from it are
measured, and the result says so. Caches of a disk, a file server or a hypervisor cannot be seen from here; nor can the
share that other jobs take of a shared disk.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from sizing.base.errors import SizingError

How = Literal["direct", "dropped", "cached"]
"""Ways to read: around the page cache; through it where it had nothing, then dropped; from the page cache."""

PIECE_BYTES = 2**20
_READERS = 4  # pieces read at the same time, as by a few workers of a data loader
_GRACE_S = 20.0  # for the last pieces of a slow disk; after that it counts as not answering


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second, with the bytes read, the seconds taken and the way of reading."""

    bytes_per_s: float
    read_bytes: int
    took_s: float
    how: How


def disk(files: Sequence[tuple[str, int]], limit_s: float = 3.0, most_bytes: int = 2**30) -> Bandwidth:
    """Measure how fast these files (path and bytes each) are read, no piece twice, within the bounds.

    Raises SizingError if none can be read, or the disk does not answer.
    """
    pieces = _Pieces(files, limit_s, most_bytes)
    found = _read(pieces)
    if not found.read_bytes and pieces.cached:
        again = _Pieces(files, limit_s, most_bytes, through_cache=True)
        found = _read(again)
    if not found.read_bytes:
        raise SizingError(f"no data file could be read ({pieces.error or 'they are empty'}): say how fast the disk is")
    return found


def memory(limit_s: float = 0.5, size_bytes: int = 2**26) -> Bandwidth:
    """Measure how fast one thread copies memory: the median of passes over a piece too large for any CPU cache."""
    source, target = memoryview(bytearray(size_bytes)), memoryview(bytearray(size_bytes))
    target[:] = source  # a first pass, which allocates the pages
    passes: list[float] = []
    over = time.perf_counter() + limit_s
    while len(passes) < 3 or time.perf_counter() < over:
        start = time.perf_counter()
        target[:] = source
        passes.append(time.perf_counter() - start)
    took_s = sum(passes)
    return Bandwidth(size_bytes / statistics.median(passes), size_bytes * len(passes), took_s, "cached")


@dataclass
class _Pieces:
    """The pieces left to read, shared by the readers, and the results so far."""

    files: Sequence[tuple[str, int]]
    limit_s: float
    most_bytes: int
    through_cache: bool = False
    read_bytes: int = 0
    cached: int = 0
    error: str = ""
    modes: set[How] = field(default_factory=set)
    ended_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._ends = list(accumulate(-(-size // PIECE_BYTES) for _, size in self.files))
        total = self._ends[-1] if self._ends else 0
        # drawn from all pieces, so that another one replaces a piece that is unreadable or in the cache
        self._order = iter(random.Random(0).sample(range(total), min(total, 2**17)))
        self.began_s = time.perf_counter()

    def next(self) -> tuple[str, int] | None:
        """Return a file and the place in it to read next; None when enough was read."""
        with self._lock:
            if self.read_bytes >= self.most_bytes or time.perf_counter() - self.began_s >= self.limit_s:
                return None
            number = next(self._order, None)
        if number is None:
            return None
        at = bisect_right(self._ends, number)
        first = self._ends[at - 1] if at else 0
        return self.files[at][0], (number - first) * PIECE_BYTES

    def done(self, read_bytes: int, how: How) -> None:
        """Record a piece that was read."""
        with self._lock:
            self.read_bytes += read_bytes
            self.modes.add(how)
            self.ended_s = time.perf_counter()


def _read(pieces: _Pieces) -> Bandwidth:
    """Read until enough was read; do not wait for a disk that does not answer."""
    readers = [threading.Thread(target=_reader, args=(pieces,), daemon=True) for _ in range(_READERS)]
    pieces.began_s = time.perf_counter()
    for reader in readers:
        reader.start()
    over = pieces.began_s + pieces.limit_s + _GRACE_S
    for reader in readers:
        reader.join(max(0.0, over - time.perf_counter()))
    if any(reader.is_alive() for reader in readers):
        raise SizingError(f"the disk of the data did not answer for {_GRACE_S:g} s: say how fast it is, or try later")
    took_s = max(pieces.ended_s - pieces.began_s, 1e-9)
    how: How = "cached" if "cached" in pieces.modes else "dropped" if "dropped" in pieces.modes else "direct"
    return Bandwidth(pieces.read_bytes / took_s, pieces.read_bytes, took_s, how)


def _reader(pieces: _Pieces) -> None:
    with mmap.mmap(-1, PIECE_BYTES) as memory_, memoryview(memory_) as buffer:  # direct reads need page alignment
        while (piece := pieces.next()) is not None:
            path, offset = piece
            try:
                read = None if pieces.through_cache else _directly(path, offset, buffer)
                read = read or _buffered(path, offset, buffer, pieces.through_cache)
            except OSError as error:
                pieces.error = f"{path}: {error.strerror}"
                continue
            if read is None:
                pieces.cached += 1
            else:
                pieces.done(*read)


# without blocking on a file that has become a pipe meanwhile
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def _directly(path: str, offset: int, buffer: memoryview) -> tuple[int, How] | None:
    """Read one piece around the cache; None if the file system cannot. Raises OSError."""
    handle = -1
    try:
        handle = os.open(path, _FLAGS | os.O_DIRECT)
        return os.preadv(handle, [buffer], offset), "direct"
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
        return None
    finally:
        if handle >= 0:
            os.close(handle)


def _buffered(path: str, offset: int, buffer: memoryview, cached: bool) -> tuple[int, How] | None:
    """Read one piece through the cache; unless `cached`, None if the cache has some of it. Raises OSError."""
    handle = os.open(path, _FLAGS)
    try:
        if cached:
            return os.preadv(handle, [buffer], offset), "cached"
        length = min(PIECE_BYTES, os.fstat(handle).st_size - offset)
        if length <= 0 or _in_cache(handle, offset, length):
            return None
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        read_bytes = os.preadv(handle, [buffer[:length]], offset)
        os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)
        return read_bytes, "dropped"
    finally:
        os.close(handle)


def _in_cache(handle: int, offset: int, length: int) -> bool:
    """Whether the page cache has any of it; also True if the kernel does not tell, as for files of others."""
    pages = -(-length // mmap.PAGESIZE)
    vector = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    # writable but private, and never written to: ctypes takes no address of read-only memory
    with mmap.mmap(handle, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset) as mapped:
        first = ctypes.c_ubyte.from_buffer(mapped)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), vector)
        del first
    return bool(failed) or any(page & 1 for page in vector)
