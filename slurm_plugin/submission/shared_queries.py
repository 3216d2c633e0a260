"""One look at Slurm shared by all threads that need one: hundreds of placings cost a handful of requests.

A look serves only threads that asked before it began: its result then holds for a time after each of them asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_SHARE = 0.2


class SharedQuery(Generic[T]):
    """A function `look` that runs in one of the asking threads, one look at a time.

    While several threads ask, looks take at most a fifth of the time, so that each look serves more threads, most of
    all on a large cluster; but this never delays them beyond `apart_s` after the last look began. A single thread does
    not wait.
    """

    def __init__(self, look: Callable[[], T], apart_s: float = 0.0) -> None:
        self._look = look
        self._apart_s = apart_s
        self._changed = threading.Condition()
        self._asking = 0
        self._looking = False
        self._begun = 0
        self._next_s = float("-inf")
        self._seen: tuple[int, T | None, BaseException | None] = (0, None, None)

    def fresh(self) -> T:
        """Return the result of a look that begins from now on; raise what the look raises."""
        with self._changed:
            before = self._begun
            self._asking += 1
        try:
            return self._after(before)
        finally:
            with self._changed:
                self._asking -= 1

    def _after(self, before: int) -> T:
        while True:
            with self._changed:
                while self._looking and self._seen[0] <= before:
                    self._changed.wait()
                number, seen, error = self._seen
                if number > before:
                    if error is not None:
                        raise error
                    return seen  # type: ignore[return-value]  # it is T if there was no error
                self._looking = True
            self._look_for_all()

    def _look_for_all(self) -> None:
        seen: T | None = None
        failed: BaseException | None = None
        number = 0
        try:
            self._let_others_join()
            with self._changed:
                self._begun += 1
                number = self._begun
            began_s = time.monotonic()
            try:
                seen = self._look()
            finally:
                self._next_s = began_s + min(self._apart_s, (time.monotonic() - began_s) / _SHARE)
        except BaseException as error:
            failed = error
            if not isinstance(error, Exception):  # this thread is ending: the next one that waits looks
                raise
        finally:
            with self._changed:
                self._looking = False
                if number:
                    self._seen = (number, seen, failed)
                self._changed.notify_all()

    def _let_others_join(self) -> None:
        with self._changed:
            left_s = self._next_s - time.monotonic() if self._asking > 1 else 0.0
        if left_s > 0:
            time.sleep(left_s)
