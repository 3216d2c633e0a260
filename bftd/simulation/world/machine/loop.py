"""An event loop of simulated time: one process, one source of randomness; nothing ever waits.

What the code under test reads as the time is the loop's, and its threads are calls that may wait (`fibers`). A thing
that would leave the simulation (a real socket, a process) raises `Forbidden`, as a sleep of the loop does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import itertools
import os
import queue
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heappush
from random import Random
from typing import Any, NoReturn, TypeVar
from unittest import mock

from bftd.simulation.world.machine.fibers import Condition, Dropped, Fiber, Lock, SimpleQueue, Waiters
from bftd.simulation.world.machine.processes import (
    Handle,
    Killed,
    Process,
    TimerHandle,
    current,
    current_process,
    dying,
    ended,
)

T = TypeVar("T")

BEGIN_S = 1_700_000_000.0
"""The wall time at which every simulated world begins, in unix seconds."""

_BOOTED_S = 1000.0
_FAULTS = (AssertionError, AttributeError, NameError, TypeError)
"""The errors that end the world if a call in a thread raises them: the code is wrong, and may tell nobody."""

_LAST_WORDS_MOST = 10
_PERIOD_S = 0.002
"""A call in a thread takes this on average, beside what it waits for."""

_FEW_TASKS = 10_000
_COLLECTED_EVENTS = 20_000
"""Garbage is collected after so many events. By itself Python does it by what the process made in worlds before."""


class Forbidden(AssertionError):
    """Code in the simulated world tried something that only a real one has."""


@dataclass
class HostClock:
    """The wall clock of a host: `ahead_s` of the true time, and by `drift` more for each second from `since_s` on."""

    ahead_s: float = 0.0
    drift: float = 0.0
    since_s: float = 0.0

    def error_s(self, now_s: float) -> float:
        """Return how far it is ahead of the true time, by the loop's time."""
        return self.ahead_s + self.drift * (now_s - self.since_s)


class _Numbered:
    """Hashed by its number in the order of creation, so that a set of these is walked alike in every run."""

    _numbers = itertools.count()

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    _number: int


class _Future(_Numbered, asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)


class _Task(_Numbered, asyncio.Task):  # type: ignore[type-arg]
    _log_destroy_pending = False  # those of killed processes

    def __init__(self, number: int, coroutine: Any, loop: asyncio.AbstractEventLoop, **more: Any) -> None:
        self._number = number
        self._own_context = contextvars.copy_context()
        super().__init__(coroutine, loop=loop, **more)

    def drop(self) -> None:
        """Close the coroutine of a killed process, whose last words change nothing, before the interpreter does."""
        for _ in range(_LAST_WORDS_MOST):
            try:
                return self._own_context.copy().run(self.get_coro().close)
            except BaseException:  # it has waited for something in its end
                continue


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. `events` counts the rounds, and `after_event` is called after each."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._seed = random.getrandbits(64)
        self._starts: dict[str, int] = {}
        self.events = 0
        self.after_event: Callable[[], None] = lambda: None
        self._now_s = _BOOTED_S
        self._selector = self  # BaseEventLoop asks it to wait
        self._number = itertools.count()
        self._kept: list[_Task] = []
        self._most_kept = _FEW_TASKS
        self._fibers: dict[Process | None, dict[Fiber, None]] = {}
        self._failure: BaseException | None = None
        self.clocks: dict[str, HostClock] = {}
        """The wall clocks of hosts that do not show the true time."""

        self.set_task_factory(self._task)
        self.set_exception_handler(self._failed)

    @property
    def random(self) -> Random:
        """The randomness of the process that runs now: what one draws changes nothing that others draw."""
        process = current.get()
        if process is None:
            return self._random
        if process.random is None:
            number = self._starts[process.name] = self._starts.get(process.name, 0) + 1
            process.random = Random(f"{self._seed} {process.name} {number}")
        return process.random

    def time(self) -> float:
        """Return the simulated monotonic time."""
        return self._now_s

    def wall(self) -> float:
        """Return the true wall time in unix seconds, which slurmctld's host shows."""
        return BEGIN_S + self._now_s - _BOOTED_S

    def wall_here(self) -> float:
        """Return the wall time on the host of the process that runs now."""
        process = current.get()
        clock = None if process is None else self.clocks.get(process.host)
        return self.wall() + (0.0 if clock is None else clock.error_s(self._now_s))

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return _Future(next(self._number), self)

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = _Task(next(self._number), coroutine, loop, **more)
        if current.get() is not None:
            # a task of a killed process must not be finalized, which would run its last words
            if len(self._kept) > self._most_kept:
                self._kept = [one for one in self._kept if not one.done()]
                self._most_kept = max(_FEW_TASKS, 2 * len(self._kept))
            self._kept.append(task)
        return task

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), Killed):
            return
        if "handle" in context:  # what asyncio notices as it collects garbage comes at no certain time
            self._failure = self._failure or context.get("exception")

    # -- waiting ---

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass until the next timer, in place of a selector."""
        if timeout is None:
            raise Forbidden("everything in the simulated world waits for ever")
        if timeout > 0:
            self._now_s = max(self._now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.events += 1
        if not self.events % _COLLECTED_EVENTS:
            gc.collect()
        while dying:
            dying.pop(0).kill()
        while ended:
            self._drop(ended.pop())
        if self._failure is not None:
            raise self._failure
        self.after_event()

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio; nothing of a killed process is called any more."""
        process = current.get() if context is None else context.get(current)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        handle = Handle(callback, args, self, context)
        handle.process = process
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio; nothing of a killed process is called any more."""
        process = current.get() if context is None else context.get(current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        handle = TimerHandle(when, callback, args, self, context)
        handle.process = process
        heappush(self._scheduled, handle)  # type: ignore[attr-defined]
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    def later(self, after_s: float, act: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        """Have something happen that is no process's doing."""
        return self.call_later(after_s, act, *arguments, context=contextvars.Context())

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """See asyncio; no signal comes but SIGTERM, and those that stop a process and have it go on."""
        if sig == signal.SIGTERM:
            current_process().at_sigterm = partial(callback, *args)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio."""
        return self.call_soon(callback, *args, context=context)

    # -- threads ---

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Make the call a moment later, in place of a thread."""
        future = self.create_future()
        self._call(func, args, future, future.cancelled)
        return future

    def submit(self, work: Callable[..., T], *arguments: Any) -> concurrent.futures.Future[T]:
        """Make the call a moment later, for code that submits it to an executor by itself."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._call(work, arguments, future, lambda: not future.set_running_or_notify_cancel())
        return future

    def _call(
        self,
        work: Callable[..., T],
        arguments: tuple[Any, ...],
        future: asyncio.Future[T] | concurrent.futures.Future[T],
        is_unwanted: Callable[[], bool],
    ) -> None:
        """Make a call in a fiber, and give its future the outcome when it is over."""

        def tell(give: Callable[[Any], None], outcome: Any) -> None:
            if not future.cancelled():
                give(outcome)

        def call() -> None:
            try:
                result = work(*arguments)
            except _FAULTS:
                raise
            except Exception as fault:
                self.call_soon(tell, future.set_exception, fault)
            else:
                self.call_soon(tell, future.set_result, result)

        def begin() -> None:
            if not is_unwanted():
                self.fiber(call).resume()

        self.call_later(self.delay_s(), begin)

    def start_thread(self, thread: threading.Thread) -> None:
        """Have a thread of the process that runs now begin."""
        if current.get() is None:
            raise Forbidden("a thread of no simulated process")
        self.call_soon(self.fiber(thread.run).resume)

    def fiber(self, work: Callable[[], None]) -> Fiber:
        """Return a call of the process that runs now, which may wait, and which ends with the process."""
        process = current.get()
        fiber = Fiber(work, partial(self._fiber_over, process))
        self._fibers.setdefault(process, {})[fiber] = None
        return fiber

    def _fiber_over(self, process: Process | None, fiber: Fiber, error: BaseException | None) -> None:
        self._fibers.get(process, {}).pop(fiber, None)
        if error is not None and not isinstance(error, (Killed, Dropped)):
            self._failure = self._failure or error

    def _drop(self, process: Process | None) -> None:
        for fiber in self._fibers.pop(process, ()):
            fiber.drop()

    def pause(self, for_s: float) -> None:
        """Let time pass in a call in a thread; the loop itself never sleeps."""
        if Fiber.current is None:
            raise Forbidden("a sleep in the simulated world: give the code a port that the world can stand behind")
        Waiters(self).wait(for_s)

    def outcome(self, work: Coroutine[Any, Any, T], within_s: float | None) -> T:
        """Have a call in a thread wait for the outcome of a coroutine; raises TimeoutError."""
        waiters, task = Waiters(self), self.create_task(work)
        task.add_done_callback(lambda _: waiters.wake())
        if not waiters.wait(within_s):
            task.cancel()
            raise TimeoutError("timed out")
        return task.result()

    def connected_socket(self, address: Any, timeout: float | None = None) -> Any:
        """See socket.create_connection."""
        raise Forbidden("a connection in a world without a network")

    def delay_s(self) -> float:
        """Return how long a call in a thread takes this time."""
        disk = process.disk if (process := current.get()) is not None else None
        return self.random.expovariate(1.0 / _PERIOD_S) * (1.0 if disk is None else disk.slow)

    def shut(self) -> None:
        """Close the loop with whatever still waits in it; all processes have to be dead."""
        for process in list(self._fibers):
            self._drop(process)
        asyncio._set_running_loop(self)
        try:
            for task in self._kept:
                if not task.done():
                    task.drop()
        finally:
            asyncio._set_running_loop(None)
        dying.clear()
        ended.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


@contextlib.contextmanager
def simulated(loop: SimulatedLoop) -> Iterator[None]:
    """Have all code of this process read the loop's time and randomness, and keep it from what is not simulated."""
    submit = lambda executor, work, *arguments: loop.submit(work, *arguments)  # noqa: E731
    own_pid, own_name, collects = os.getpid(), os.uname(), gc.isenabled()
    with contextlib.ExitStack() as stack:
        if collects:
            gc.collect()
            gc.disable()
            stack.callback(gc.enable)
        for module, name, instead in (
            (time, "time", loop.wall_here),
            (time, "monotonic", loop.time),
            (time, "perf_counter", loop.time),
            (time, "thread_time", lambda: 0.0),
            (time, "sleep", loop.pause),
            (secrets, "token_bytes", lambda size_bytes=32: loop.random.randbytes(size_bytes)),
            (concurrent.futures.ThreadPoolExecutor, "submit", submit),
            (threading.Thread, "start", lambda thread: loop.start_thread(thread)),
            (threading, "Lock", lambda: Lock(loop)),
            (threading, "Condition", lambda lock=None: Condition(loop)),
            (queue, "SimpleQueue", lambda: SimpleQueue(loop)),
            (socket, "create_connection", loop.connected_socket),
            (os, "getpid", lambda: getattr(current.get(), "pid", own_pid)),
            (os, "uname", lambda: _uname(own_name, current.get())),
            (subprocess.Popen, "__init__", _forbidden("a process")),
            (socket.socket, "__init__", _forbidden("a real socket")),
        ):
            stack.enter_context(mock.patch.object(module, name, instead))
        yield


def _uname(own: os.uname_result, process: Process | None) -> os.uname_result:
    return own if process is None else os.uname_result((own.sysname, process.host, *tuple(own)[2:]))


def _forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Forbidden(f"{what} in the simulated world: give the code a port that the world can stand behind")

    return refuse
