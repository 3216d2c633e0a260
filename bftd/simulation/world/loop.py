"""An event loop of simulated time: one process, one thread, one source of randomness; nothing ever waits.

What the code under test reads as the time is the loop's, and its threads are calls that the loop makes a moment later.
A thing that would leave the simulation (a socket, a thread, a process, a sleep) raises `Forbidden`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import itertools
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, NoReturn, TypeVar
from unittest import mock

T = TypeVar("T")

BEGIN_S = 1_700_000_000.0
"""The wall time at which every simulated world begins, in unix seconds."""

_BOOTED_S = 1000.0
_PERIOD_S = 0.002
"""A call in a thread takes this on average, beside what it waits for."""

_FEW_TASKS = 10_000


class Forbidden(AssertionError):
    """Code in the simulated world tried something that only a real one has."""


class Process:
    """A simulated process: what runs in its context ends with `kill`, at once and without its last words."""

    def __init__(self, name: str, host: str, uid: int = 0) -> None:
        self.name = name
        self.host = host
        self.uid = uid
        self.dead = False
        self.random: Random | None = None
        self.on_kill: list[Callable[[], None]] = []
        """The kernel's part of the end, the last first: it closes connections and files."""
        self._context = contextvars.copy_context()
        self._context.run(_current.set, self)

    def start(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> asyncio.Task[T]:
        """Run a coroutine in the process."""
        return self.run(lambda: asyncio.get_running_loop().create_task(work(*arguments)))

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the process."""
        return self._context.copy().run(work, *arguments)

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        if not self.dead:
            self.dead = True
            while self.on_kill:
                self.on_kill.pop()()


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process:
    """Return the simulated process that runs now."""
    process = _current.get()
    assert process is not None, "only a simulated process does this"
    return process


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
        super().__init__(coroutine, loop=loop, **more)


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
        self._kept: list[asyncio.Task[Any]] = []
        self._most_kept = _FEW_TASKS
        self._failure: BaseException | None = None
        self.set_task_factory(self._task)
        self.set_exception_handler(self._failed)

    @property
    def random(self) -> Random:
        """The randomness of the process that runs now: what one draws changes nothing that others draw."""
        process = _current.get()
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
        """Return the simulated wall time in unix seconds."""
        return BEGIN_S + self._now_s - _BOOTED_S

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return _Future(next(self._number), self)

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = _Task(next(self._number), coroutine, loop, **more)
        if _current.get() is not None:
            # a task of a killed process must not be finalized, which would run its last words
            if len(self._kept) > self._most_kept:
                self._kept = [one for one in self._kept if not one.done()]
                self._most_kept = max(_FEW_TASKS, 2 * len(self._kept))
            self._kept.append(task)
        return task

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
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
        if self._failure is not None:
            raise self._failure
        self.after_event()

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio; nothing of a killed process is called any more."""
        return super().call_soon(_of_living(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio; nothing of a killed process is called any more."""
        return super().call_at(when, _of_living(callback, context), *args, context=context)

    def later(self, after_s: float, act: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        """Have something happen that is no process's doing."""
        return self.call_later(after_s, act, *arguments, context=contextvars.Context())

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:  # type: ignore[override]
        """See asyncio."""
        return self.call_soon(callback, *args, context=context)

    # -- threads ---

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Make the call a moment later, in place of a thread."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except (SystemExit, KeyboardInterrupt, Forbidden):
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.delay_s(), call)
        return future

    def submit(self, work: Callable[..., T], *arguments: Any) -> concurrent.futures.Future[T]:
        """Make the call a moment later, for code that submits it to an executor by itself."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(*arguments))
            except Forbidden:
                raise
            except BaseException as error:
                future.set_exception(error)

        self.call_later(self.delay_s(), call)
        return future

    def delay_s(self) -> float:
        """Return how long a call in a thread takes this time."""
        return self.random.expovariate(1.0 / _PERIOD_S)

    def shut(self) -> None:
        """Close the loop with whatever still waits in it."""
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


def _of_living(callback: Any, context: contextvars.Context | None) -> Any:
    process = _current.get() if context is None else context.get(_current)
    if process is None:
        return callback

    def call(*args: Any) -> None:
        if not process.dead:
            callback(*args)

    return call


@contextlib.contextmanager
def simulated(loop: SimulatedLoop) -> Iterator[None]:
    """Have all code of this process read the loop's time and randomness, and keep it from what is not simulated."""
    submit = lambda executor, work, *arguments: loop.submit(work, *arguments)  # noqa: E731
    with contextlib.ExitStack() as stack:
        for module, name, instead in (
            (time, "time", loop.wall),
            (time, "monotonic", loop.time),
            (time, "perf_counter", loop.time),
            (time, "sleep", _forbidden("a sleep")),
            (secrets, "token_bytes", lambda size_bytes=32: loop.random.randbytes(size_bytes)),
            (concurrent.futures.ThreadPoolExecutor, "submit", submit),
            (threading.Thread, "start", _forbidden("a thread")),
            (subprocess.Popen, "__init__", _forbidden("a process")),
            (socket.socket, "__init__", _forbidden("a real socket")),
        ):
            stack.enter_context(mock.patch.object(module, name, instead))
        yield


def _forbidden(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Forbidden(f"{what} in the simulated world: give the code a port that the world can stand behind")

    return refuse
