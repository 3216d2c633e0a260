"""Long work done a slice at a time, so that the loop serves others in between."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

# The target time of a slice: its size is adapted to how long the last one took.
SLICE_S = 0.005
_FIRST = 16
_MOST = 500


class Slices(Generic[_T]):
    """Items to work on: `take` the next ones, do the work, and `rest`."""

    def __init__(self, items: Sequence[_T], turn: Callable[[], Awaitable[None]]) -> None:
        """`turn` returns when it is time for more."""
        self._items = items
        self._next_turn = turn
        self._at, self._size = 0, _FIRST
        self._begun_s = 0.0

    def take(self) -> Sequence[_T]:
        """Return the next slice; empty at the end."""
        self._begun_s = time.perf_counter()
        taken = self._items[self._at : self._at + self._size]
        self._at += len(taken)
        return taken

    async def rest(self) -> None:
        """Let others be served, if there is more to do."""
        took_s = max(time.perf_counter() - self._begun_s, 1e-6)
        self._size = max(1, min(_MOST, 2 * self._size, int(self._size * SLICE_S / took_s)))
        if self._at < len(self._items):
            await self._next_turn()
