"""Memory for the copies of states, kept for those to come: touching fresh memory takes longer than the copy."""

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

from elastic.errors import StateError
from elastic.memory import free_bytes

ARENAS = 2
"""How many copies are kept in memory: one is being written while another is the newest."""

_OFTEN = 10
"""Saves that follow one another within so many times of what a state takes to travel do sooner or later meet one."""

_SPARE = 1.5
"""Memory is made ready only where so many times of it is free: what was not needed yet must push nobody out."""

_HUGE_BYTES = 2 << 20
_REST_S = 0.001
_WIPE_ON_FORK = 18
"""A child finds zeros here (madvise(2)). Else each fork, a loader's say, would make the next copy go to fresh pages."""

_cuda: Any = torch.cuda


class Arena(mmap.mmap):
    """Memory for one copy of a state: of huge pages where the kernel has them, and page-locked for an accelerator."""

    locked = False
    _address: int

    @classmethod
    def new(cls, size_bytes: int) -> Arena:
        """At least so much memory; raises StateError when there is none."""
        try:
            arena = cls(-1, max(1, -(-size_bytes // _HUGE_BYTES)) * _HUGE_BYTES, flags=mmap.MAP_PRIVATE)
        except OSError as error:
            size = f"{size_bytes / 1e9:.1f} GB"
            raise StateError(f"no memory for a copy of the state ({size}): ask Slurm for more with --mem") from error
        with contextlib.suppress(OSError):  # a kernel without them
            arena.madvise(mmap.MADV_HUGEPAGE)
        with contextlib.suppress(OSError):
            arena.madvise(_WIPE_ON_FORK)
        # By who asks for it: a thread in the background that is in torch as the interpreter ends aborts the process.
        arena._address = torch.frombuffer(arena, dtype=torch.uint8, count=1).data_ptr()
        return arena

    def lock_pages(self) -> None:
        """Lets an accelerator copy here by itself; where it cannot, copies only take longer."""
        if not self.locked and _cuda.is_available():
            self.locked = int(_cuda.cudart().cudaHostRegister(self._address, len(self), 0)) == 0

    def storage(self, offset: int, size_bytes: int) -> torch.UntypedStorage:
        """This part of the memory as a storage, which keeps all of it alive."""
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
        return torch.frombuffer(self, dtype=torch.uint8, count=size_bytes, offset=offset).untyped_storage()

    def touch(self, offset: int) -> None:
        """Has the kernel find memory for a huge page, other threads running meanwhile; what was there is lost."""
        ctypes.memset(self._address + offset, 0, _HUGE_BYTES)

    def __del__(self) -> None:
        if self.locked:
            with contextlib.suppress(Exception):  # the interpreter ends, and the memory with it
                _cuda.cudart().cudaHostUnregister(self._address)


class Pool:
    """The memory of snapshots that were released, for those to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Arena] = []
        self._taken: weakref.WeakSet[Arena] = weakref.WeakSet()
        self._copied_s = -math.inf
        self._travel_s = 0.0
        self.preparing: threading.Thread | None = None

    def take(self, size_bytes: int) -> Arena:
        """Memory for so many bytes; what is idle and does not fit is given up. Raises StateError."""
        with self._lock:
            fitting = [arena for arena in self._idle if size_bytes <= len(arena) <= 2 * size_bytes + _HUGE_BYTES]
            arena = fitting[-1] if fitting else None  # used last: its pages are there
            self._idle = [other for other in fitting if other is not arena]
            if arena is None:
                arena = Arena.new(size_bytes)
            self._taken.add(arena)
            return arena

    def give_back(self, arena: Arena) -> None:
        """Nobody reads this memory any more."""
        with self._lock:
            self._taken.discard(arena)
            if len(self._idle) + len(self._taken) < ARENAS:
                self._idle.append(arena)

    def travelled(self, took_s: float) -> None:
        """A copy was written, in so long."""
        self._travel_s = took_s

    def copied(self, size_bytes: int, now_s: float) -> None:
        """A copy was made at `now_s`, of a monotonic clock.

        Where saves come so often that one will be made while another travels, the memory for that is touched before, in
        the background: new memory takes several times as long as a copy.
        """
        apart_s, self._copied_s = now_s - self._copied_s, now_s
        with self._lock:
            if apart_s > _OFTEN * self._travel_s or len(self._idle) + len(self._taken) >= ARENAS:
                return
            free = free_bytes()
            if free is None or free < _SPARE * size_bytes:
                return
            try:
                arena = Arena.new(size_bytes)
            except StateError:
                return
            self._idle.insert(0, arena)
            self.preparing = threading.Thread(target=self._prepare, args=(arena,), name="bft-memory", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: it is touched when it is needed
                self.preparing.start()

    def _prepare(self, arena: Arena) -> None:
        for offset in range(0, len(arena), _HUGE_BYTES):
            with self._lock:
                if not any(idle is arena for idle in self._idle):
                    return  # taken: what it holds is a state
                arena.touch(offset)
            time.sleep(_REST_S)  # who waits for the lock has it now


POOL = Pool()
