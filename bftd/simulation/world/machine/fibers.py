"""Calls that wait in the middle, as those in threads do, in a world of one thread: one of them runs at a time.

Python has no stacks but those of threads. So each call has a thread, which runs only while the loop waits for it, and
gives control back where it waits: nothing ever runs beside anything else, and nothing depends on the scheduler.
"""

from __future__ import annotations

import _thread
import contextvars
import queue
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol


class Dropped(BaseException):
    """The process has ended, or the world, and with it a call that still waited."""


class Loop(Protocol):
    """The loop, which wakes calls that wait."""

    def time(self) -> float:
        """Return the simulated monotonic time."""

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See asyncio."""

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        """See asyncio."""


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
    """A call in the context that it is made in; `resume` runs it until it waits or ends.

    `ended` is called at its end, with the error that it has raised, if any.
    """

    current: Fiber | None = None
    """The call that runs now."""

    def __init__(self, work: Callable[[], None], ended: Callable[[Fiber, BaseException | None], None]) -> None:
        self.over = False
        self.context = contextvars.copy_context()
        self._work = work
        self._ended = ended
        self._stack = _Stack.idle.pop() if _Stack.idle else _Stack()
        self._stack.work = self._run
        self._error: BaseException | None = None

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
            self._ended(self, self._error)

    def park(self) -> None:
        """Wait, from within the call, for the next `resume`; raises what `interrupt` gives."""
        if not isinstance(self._error, Dropped):
            self._stack.back.release()
            self._stack.go.acquire()
        if isinstance(self._error, Dropped):
            raise self._error
        error, self._error = self._error, None
        if error is not None:
            raise error

    def interrupt(self, error: BaseException) -> None:
        """Raise an error in a call that waits, as a signal's handler does."""
        self._error = error
        self.resume()

    def drop(self) -> None:
        """End a call that waits, with its last words, in which it waits no more."""
        self.interrupt(Dropped())

    def _run(self) -> None:
        try:
            if self._error is None:  # else it ends before it has begun
                self.context.run(self._work)
        except BaseException as error:
            if not isinstance(self._error, Dropped):
                self._error = error
        self.over = True


class _Wait:
    """One wait of a call: it is `woken`, or `over`."""

    def __init__(self, fiber: Fiber) -> None:
        self.fiber = fiber
        self.woken = self.over = False


class Waiters:
    """The calls that wait for the same thing."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._waits: deque[_Wait] = deque()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Have the current call wait until it is woken; returns False if its time is over before."""
        fiber = Fiber.current
        assert fiber is not None, "only a call in a thread waits for others"
        wait = _Wait(fiber)
        self._waits.append(wait)
        timer = None if timeout_s is None else self.loop.call_later(max(0.0, timeout_s), self._late, wait)
        try:
            fiber.park()
        finally:
            wait.over = True
            if timer is not None:
                timer.cancel()
            if not wait.woken:
                self._waits.remove(wait)
        return wait.woken

    def wake(self, most: int | None = None) -> None:
        """Wake the calls that wait, the first ones first."""
        for _ in range(len(self._waits) if most is None else min(most, len(self._waits))):
            wait = self._waits.popleft()
            wait.woken = True
            self.loop.call_soon(self._go_on, wait, context=wait.fiber.context.copy())

    def _late(self, wait: _Wait) -> None:
        if not wait.woken:
            self._go_on(wait)

    def _go_on(self, wait: _Wait) -> None:
        if not wait.over:
            wait.fiber.resume()


class Lock:
    """A lock for which calls wait."""

    def __init__(self, loop: Loop) -> None:
        self._waiters = Waiters(loop)
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See threading."""
        ends_s = self._waiters.loop.time() + timeout
        while self._held and blocking:
            if not self._waiters.wait(None if timeout < 0 else ends_s - self._waiters.loop.time()):
                return False
        if self._held:
            return False
        self._held = True
        return True

    def release(self) -> None:
        """See threading."""
        self._held = False
        self._waiters.wake(1)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Condition(Waiters):
    """A condition for which calls wait; no other runs between two of its calls, so it needs no lock."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: Any) -> None:
        pass

    def notify(self, n: int = 1) -> None:
        """See threading."""
        self.wake(n)

    def notify_all(self) -> None:
        """See threading."""
        self.wake()


class SimpleQueue:
    """A queue for whose items calls wait."""

    def __init__(self, loop: Loop) -> None:
        self._waiters = Waiters(loop)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """See queue."""
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See queue."""
        while not self._items:
            if not (block and self._waiters.wait(timeout)):
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """See queue."""
        return self.get(block=False)
