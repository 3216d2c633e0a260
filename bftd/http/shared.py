"""Answers that take a while: one at a time is made, in a thread, and shared for a moment by all who see the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Shared(Generic[_K, _V]):
    """Answers by what they are of; each is given again for a moment, and for as long as it takes to make."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._made: dict[_K, tuple[float, asyncio.Future[_V]]] = {}

    async def answer(
        self, key: _K, prepare: Callable[[], Callable[[], _V]], kept_s: float, *, anew: bool = False
    ) -> _V:
        """The answer of a key, of the last `kept_s` seconds unless `anew`; else one that is made now.

        `prepare` looks at the present, on the loop, and gives what makes the answer, in the thread.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        # what is not made yet is waited for, so that nobody who asks again and again makes a queue
        self._made = {of: made for of, made in self._made.items() if now_s - made[0] < kept_s or not made[1].done()}
        made = self._made.get(key)
        if made is None or anew:
            made = self._made[key] = (now_s, loop.run_in_executor(self._thread, prepare()))
        return await asyncio.shield(made[1])

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
