"""Memory for copies of states, reused from one copy to the next: touching fresh memory takes longer than copying."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import time
import weakref
from typing import Any

import torch

from elastic.base.errors import CheckpointError

BUFFERS = 2
"""The number of copies kept in memory: one is being written while another is the newest."""

_OFTEN = 10
"""Saves less than this many times a state's writing time apart sooner or later begin while one is written."""

_SPARE = 1.5
"""Memory is prepared only if this many times its size is free: memory not yet needed must not evict other data."""

_HUGE_BYTES = 2 << 20
_REST_S = 0.001
_WIPE_ON_FORK = 18
"""MADV_WIPEONFORK of madvise(2): a forked child finds zeros here. Otherwise every fork, a data loader's for example,
would make the next copy go to fresh pages."""

_cuda: Any = torch.cuda


class Buffer(mmap.mmap):
    """Memory for one copy of a state: in huge pages if the kernel has them, and page-locked for an accelerator."""

    locked = False
    _address: int

    @classmethod
    def new(cls, size_bytes: int) -> Buffer:
        """Allocate at least this much memory; raises CheckpointError if there is not enough."""
        try:
            buffer = cls(-1, max(1, -(-size_bytes // _HUGE_BYTES)) * _HUGE_BYTES, flags=mmap.MAP_PRIVATE)
        except OSError as error:
            size = f"{size_bytes / 1e9:.1f} GB"
            raise CheckpointError(
                f"no memory for a copy of the state ({size}): ask Slurm for more with --mem"
            ) from error
        with contextlib.suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(OSError):
            buffer.madvise(_WIPE_ON_FORK)
        # Found by the caller, here: a background thread that is in torch as the interpreter ends aborts the process.
        buffer._address = torch.frombuffer(buffer, dtype=torch.uint8, count=1).data_ptr()
        return buffer

    def lock_pages(self) -> None:
        """Let an accelerator copy here directly; if that fails, copies only take longer."""
        if not self.locked and _cuda.is_available():
            self.locked = int(_cuda.cudart().cudaHostRegister(self._address, len(self), 0)) == 0

    def storage(self, offset: int, size_bytes: int) -> torch.UntypedStorage:
        """Return this part of the memory as a storage, which keeps the whole buffer alive."""
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
        return torch.frombuffer(self, dtype=torch.uint8, count=size_bytes, offset=offset).untyped_storage()

    def touch(self, offset: int) -> None:
        """Have the kernel back a huge page, with the interpreter's lock released meanwhile; the old content is lost."""
        ctypes.memset(self._address + offset, 0, _HUGE_BYTES)

    def __del__(self) -> None:
        if self.locked:
            with contextlib.suppress(Exception):  # the interpreter is ending, and the memory with it
                _cuda.cudart().cudaHostUnregister(self._address)


class BufferPool:
    """The memory of released snapshots, kept for later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Buffer] = []
        self._taken: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._copied_s = -math.inf
        self._write_s = 0.0
        self.preparing: threading.Thread | None = None

    def take(self, size_bytes: int) -> Buffer:
        """Return memory for this many bytes, and free idle memory that does not fit. Raises CheckpointError."""
        with self._lock:
            fitting = [buffer for buffer in self._idle if size_bytes <= len(buffer) <= 2 * size_bytes + _HUGE_BYTES]
            buffer = fitting[-1] if fitting else None  # the one used last: its pages are in memory
            self._idle = [other for other in fitting if other is not buffer]
            if buffer is None:
                buffer = Buffer.new(size_bytes)
            self._taken.add(buffer)
            return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Take back memory that nothing reads any more."""
        with self._lock:
            self._taken.discard(buffer)
            if len(self._idle) + len(self._taken) < BUFFERS:
                self._idle.append(buffer)

    def wrote(self, took_s: float) -> None:
        """Note how long writing a copy took."""
        self._write_s = took_s

    def copied(self, size_bytes: int, now_s: float) -> None:
        """Note that a copy was made at `now_s`, on a monotonic clock.

        If saves come so often that a copy will be made while another is written, the memory for it is touched in
        advance, in the background: new memory takes several times as long as a copy.
        """
        apart_s, self._copied_s = now_s - self._copied_s, now_s
        with self._lock:
            if apart_s > _OFTEN * self._write_s or len(self._idle) + len(self._taken) >= BUFFERS:
                return
            free = free_bytes()
            if free is None or free < _SPARE * size_bytes:
                return
            try:
                buffer = Buffer.new(size_bytes)
            except CheckpointError:
                return
            self._idle.insert(0, buffer)
            self.preparing = threading.Thread(target=self._prepare, args=(buffer,), name="bft-memory", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the memory is touched when it is needed
                self.preparing.start()

    def _prepare(self, buffer: Buffer) -> None:
        for offset in range(0, len(buffer), _HUGE_BYTES):
            with self._lock:
                if not any(idle is buffer for idle in self._idle):
                    return  # taken: it now holds a state
                buffer.touch(offset)
            time.sleep(_REST_S)  # lets a waiting thread have the lock


POOL = BufferPool()


def free_bytes() -> int | None:
    """Return the memory that programs can have without evicting others' pages; None if the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
