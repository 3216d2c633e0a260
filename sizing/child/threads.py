"""Jobs that run side by side, each in a thread that an interruption does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def side_by_side(jobs: Sequence[Callable[[], T]], tick: Callable[[], None], at_once: int = 2) -> list[T]:
    """Return the results of jobs, run `at_once` at a time; the first error ends it.

    `tick` is called in the caller's thread a few times a second. The threads are daemons: a user who interrupts does
    not wait for them, and their processes end with the program.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = list(enumerate(jobs))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not waiting or errors:
                    return
                at, job = waiting.pop(0)
            try:
                results[at] = job()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(at_once, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            tick()
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(jobs))]
