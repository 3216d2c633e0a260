"""Calls that wait in the middle, as those in threads do, in a world of one thread: one of them runs at a time.

Python has no stacks but those of threads. So each call has a thread, which runs only while the loop waits for it, and
gives control back where it waits: nothing ever runs beside anything else, and nothing depends on the scheduler.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
from collections.abc import Callable
from typing import Any, ClassVar


class Dropped(BaseException):
    """The world has ended, and with it a call that still waited."""


class _Stack:
    """A thread that makes one call after another."""

    idle: ClassVar[list[_Stack]] = []

    def __init__(self) -> None:
        self.go, self.back = _thread.allocate_lock(), _thread.allocate_lock()
        self.work: Callable[[], None]
        self.go.acquire()
        self.back.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.go.acquire()
            self.work()
            self.back.release()


class Fiber:
    """A call in the context that it is made in; `resume` runs it until it waits or ends."""

    current: Fiber | None = None
    """The call that runs now."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.over = False
        self.context = contextvars.copy_context()
        self._work = work
        self._stack = _Stack.idle.pop() if _Stack.idle else _Stack()
        self._stack.work = self._run
        self._dropped = False

    def resume(self) -> None:
        """Go on with the call."""
        assert Fiber.current is None
        assert not self.over
        Fiber.current = self
        self._stack.go.release()
        self._stack.back.acquire()
        Fiber.current = None
        if self.over:
            _Stack.idle.append(self._stack)

    def park(self) -> None:
        """Wait, from within the call, for the next `resume`."""
        self._stack.back.release()
        self._stack.go.acquire()
        if self._dropped:
            raise Dropped

    def drop(self) -> None:
        """End a call that waits, with its last words."""
        self._dropped = True
        self.resume()

    def _run(self) -> None:
        with contextlib.suppress(Dropped):
            self.context.run(self._work)
        self.over = True


class Lock:
    """A lock for which fibers wait; `call_soon` is the loop's."""

    def __init__(self, call_soon: Callable[..., Any]) -> None:
        self._call_soon = call_soon
        self._held = False
        self._waiting: list[Fiber] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See threading."""
        while self._held and blocking:
            _parked(self._waiting, timeout)
        if self._held:
            return False
        self._held = True
        return True

    def release(self) -> None:
        """See threading."""
        self._held = False
        self._wake(1)

    def _wake(self, most: int) -> None:
        woken, self._waiting = self._waiting[:most], self._waiting[most:]
        for fiber in woken:
            self._call_soon(fiber.resume, context=fiber.context.copy())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Condition(Lock):
    """A condition for which fibers wait; the others do not run between two of its calls, so it needs no lock."""

    def __init__(self, call_soon: Callable[..., Any], lock: Any = None) -> None:
        super().__init__(call_soon)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See threading."""
        return True

    def release(self) -> None:
        """See threading."""

    def wait(self, timeout: float | None = None) -> bool:
        """See threading."""
        _parked(self._waiting, -1 if timeout is None else timeout)
        return True

    def notify(self, n: int = 1) -> None:
        """See threading."""
        self._wake(n)

    def notify_all(self) -> None:
        """See threading."""
        self._wake(len(self._waiting))


def _parked(waiting: list[Fiber], timeout: float) -> None:
    fiber = Fiber.current
    assert fiber is not None, "only a call in a thread waits for others"
    assert timeout < 0, "nobody here waits with a time limit"
    waiting.append(fiber)
    fiber.park()
