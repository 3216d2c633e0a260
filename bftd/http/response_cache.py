"""Answers that take a while: made one at a time, in a thread, and shared for a moment by all who see the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class ResponseCache(Generic[_K, _V]):
    """Answers by key; each is returned again for a moment, and for as long as it is being made."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._made: dict[_K, tuple[float, asyncio.Future[_V]]] = {}

    async def answer(
        self, key: _K, prepare: Callable[[], Callable[[], _V]], kept_s: float, *, anew: bool = False
    ) -> _V:
        """Return the answer of a key, made in the last `kept_s` seconds unless `anew`, else made now.

        `prepare` reads the present state, on the loop, and returns the function that makes the answer, in the thread.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        # an unfinished answer is waited for, so that a caller who asks again and again does not fill a queue
        self._made = {of: made for of, made in self._made.items() if now_s - made[0] < kept_s or not made[1].done()}
        made = self._made.get(key)
        if made is None or anew:
            made = self._made[key] = (now_s, loop.run_in_executor(self._thread, prepare()))
        return await asyncio.shield(made[1])

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
