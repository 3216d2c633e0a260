"""Simulated processes: what runs in one ends with it, and waits while it is stopped."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Killed(BaseException):
    """The process that runs now has been killed in the midst of an operation: nothing of it goes on."""


class Process:
    """A simulated process: what runs in its context ends with `kill`, at once and without its last words."""

    disk: Any = None
    """The `disk.Disk` that its files are on; None if they cannot fail."""

    rc = -signal.SIGKILL
    """Its exit code, once it has ended."""

    def __init__(self, name: str, host: str, uid: int = 0, pid: int = 4711) -> None:
        """`pid` is what it knows as its own."""
        self.name = name
        self.host = host
        self.uid = uid
        self.pid = pid
        self.dead = self.clings = self._doomed = False
        self.random: Random | None = None
        self.print: Callable[[str], None] = lambda text: None
        self.at_sigterm: Callable[[], None] | None = None
        """Its handler of SIGTERM; without one it ends."""

        self.held: list[OfProcess] | None = None
        """The callbacks that wait for a stopped process; None while it runs."""
        self.on_kill: list[Callable[[], None]] = []
        """The kernel's part of the end, the last first: it closes connections and files."""
        self._context = contextvars.copy_context()
        self._context.run(current.set, self)

    def start(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> asyncio.Task[T]:
        """Run a coroutine in the process."""
        return self.run(lambda: asyncio.get_running_loop().create_task(work(*arguments)))

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the process."""
        return self._context.copy().run(work, *arguments)

    def kill(self) -> None:
        """End the process as SIGKILL does; one that clings ends when it does not any more."""
        if self.clings:
            self._doomed = True
            return
        self.dead = True
        while self.on_kill:
            self.on_kill.pop()()
        ended.append(self)

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.at_sigterm is None:
            self.kill()
        else:
            self.run(asyncio.get_running_loop().call_soon, self.at_sigterm)

    def kill_here(self) -> None:
        """End the process in the midst of what it does now: the kernel's part comes after that."""
        self.dead = True
        dying.append(self)

    def stop(self, *, clings: bool = False) -> None:
        """Stop the process as SIGSTOP does, or as a dead file server does, for which it `clings` to life."""
        self.clings = self.clings or clings
        if self.held is None:
            self.held = []

    def go_on(self) -> None:
        """Have a stopped process go on, or end: it sees what has arrived before it sees what the time is."""
        self.clings = False
        if self._doomed:
            self.kill()
        held, self.held = self.held, None
        for handle in sorted(held or (), key=lambda one: not one.arrives):
            handle.go_on()


current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The process that runs now; None if the world itself acts."""


def current_process() -> Process:
    """Return the simulated process that runs now."""
    process = current.get()
    assert process is not None, "only a simulated process does this"
    return process


def process_or_none() -> Process | None:
    """Return the simulated process that runs now; None if the world itself acts."""
    return current.get()


def exit_here(code: int) -> NoReturn:
    """End the process that runs now, as os._exit does."""
    process = current_process()
    process.rc = code
    process.kill_here()
    raise Killed


dying: list[Process] = []
"""The processes that were killed in the midst of what they did."""

ended: list[Process] = []
"""The processes whose calls in threads are to be dropped."""


class OfProcess:
    """A callback of a process: one that is killed is not called any more, one that is stopped is called later."""

    __slots__ = ()
    process: Process

    def _run(self) -> None:
        if self.process.held is not None:
            self.process.held.append(self)
        elif not self.process.dead:
            super()._run()  # type: ignore[misc]

    @property
    def arrives(self) -> bool:
        """Whether the kernel calls, with what has come over the network."""
        return getattr(getattr(self._callback, "__self__", None), "of_kernel", False)  # type: ignore[attr-defined]

    def go_on(self) -> None:
        """Be called after all."""
        self._loop._ready.append(self)  # type: ignore[attr-defined]


class Handle(OfProcess, asyncio.Handle):
    __slots__ = ("process",)


class TimerHandle(OfProcess, asyncio.TimerHandle):
    __slots__ = ("process",)
