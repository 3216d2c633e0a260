"""Calls spread over forked processes, which share the caller's memory and never outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from bftd.base.errors import BftError
from milp.running.process import die_with_parent

R = TypeVar("R")
Progress = Callable[[float], None]

# The interval between progress reports, in seconds.
_PROGRESS_EVERY_S = 0.2

# Set in a worker, before its first call.
_work: Callable[[int, Progress], Any]
_parts: ctypes.Array[ctypes.c_double]


def each(
    work: Callable[[int, Progress], R], order: Sequence[int], jobs: int, progress: Progress | None = None
) -> list[R]:
    """Return `work(index, tell)` for the indices 0..n-1, started in the given `order`, with results in order of index.

    A call reports the fraction of it that is done, in 0..1, through `tell`; `progress` receives that of all calls
    together. An error in a call, or Ctrl-C, ends all others at once. Raise `BftError` if a worker is killed.
    """
    if min(jobs, len(order)) > 1:
        return _forked(work, order, min(jobs, len(order)), progress)
    results: dict[int, R] = {}
    for index in order:
        done = len(results)
        results[index] = work(index, _telling(progress, done, len(order)))
    return [results[index] for index in sorted(results)]


def _telling(progress: Progress | None, done: int, count: int) -> Progress:
    return lambda part: progress((done + part) / count) if progress is not None else None


def _forked(work: Callable[[int, Progress], R], order: Sequence[int], jobs: int, progress: Progress | None) -> list[R]:
    context = get_context("fork")
    parts = context.RawArray(ctypes.c_double, len(order))
    before = set(active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(work, parts, os.getpid()))
    try:
        with _uninterrupted():
            calls = {executor.submit(_call, index): index for index in order}
        waiting = set(calls)
        while waiting:
            done, waiting = wait(waiting, _PROGRESS_EVERY_S, FIRST_COMPLETED)
            for call in done:
                call.result()
                parts[calls[call]] = 1.0
            if progress is not None:
                progress(sum(parts) / len(order))
        return [call.result() for call in sorted(calls, key=calls.__getitem__)]
    except BrokenProcessPool:
        raise BftError("a worker process was killed, perhaps for want of memory: use fewer of them (--jobs)") from None
    except BaseException:
        for worker in set(active_children()) - before:
            worker.kill()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C. Workers started meanwhile never receive it: their parent does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Callable[[int, Progress], Any], parts: ctypes.Array[ctypes.c_double], parent: int) -> None:
    """Make this process a worker: it inherits `work` by the fork, and the kernel kills it when its parent is gone."""
    global _work, _parts
    die_with_parent(parent)
    _work, _parts = work, parts


def _call(index: int) -> Any:
    return _work(index, lambda part: _parts.__setitem__(index, part))
