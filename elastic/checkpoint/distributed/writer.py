"""A thread that writes distributed checkpoints: all workers write the same states, and a newer replaces a waiting one.

Each worker has one state being written and at most one waiting. A newer state replaces the waiting one on all workers
or on none: they vote first, and no thread takes the waiting state between its worker's vote and the exchange. A thread
that takes it waits at a barrier until all have it. So the waiting states are the same whenever a thread takes one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from elastic.base.errors import LinkLostError


class WriteJob(Protocol):
    """One state to write."""

    def run(self) -> None:
        """Write the state and report it; raises only what a lost group raises."""

    def release(self) -> None:
        """Give its memory back; called once, when it was written or replaced."""


class Writer:
    """A thread of one worker that writes states together with those of the other workers.

    `together` returns when every worker's thread has come to it; it raises if one of them is lost.
    """

    def __init__(self, together: Callable[[], None]) -> None:
        self._together = together
        self._news = threading.Condition()
        self._deciding = False
        self._begun = self._met = 0
        self._waiting: WriteJob | None = None
        self._writing: WriteJob | None = None
        self._lost: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, agree: Callable[[int, int], tuple[int, int]], make: Callable[[], WriteJob]) -> None:
        """Have the state of `make` written next, in place of a waiting one; called by the thread that trains.

        `agree(begun, met)` is a vote of all workers. Each gives how often it has begun to take a state, and how often
        all have met at that; the result is the largest `begun` and the smallest `met`.
        """
        while True:
            with self._news:
                if self._lost is not None:  # it would never be written, and no error reported
                    raise self._gone() from self._lost
                self._deciding, begun, met = True, self._begun, self._met
            most, fewest = agree(begun, met)
            if most == fewest:
                break
            self._meet(most)
        # No thread takes it now. The new copy goes into its memory: there are never more than two copies.
        before, self._waiting = self._waiting, None
        if before is not None:
            before.release()
        try:
            job = make()
        except BaseException:
            with self._news:
                self._decided()
            raise
        with self._news:
            self._waiting = job
            self._decided()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bft-write", daemon=True)
            self._thread.start()

    def _meet(self, times: int) -> None:
        """Wait until this worker's thread has taken the state too: the others wait for it, and it needs the lock."""
        with self._news:
            self._decided()
            self._news.wait_for(lambda: self._met >= times or self._lost is not None)
            if self._lost is not None:
                raise self._gone() from self._lost

    def _gone(self) -> LinkLostError:
        return LinkLostError(f"a worker was lost while a checkpoint was written: {self._lost}")

    def drain(self) -> None:
        """Wait until nothing is being written or waits, or nothing can be written any more."""
        with self._news:
            self._news.wait_for(lambda: self._lost is not None or (self._waiting is None and self._writing is None))

    def _decided(self) -> None:
        self._deciding = False
        self._news.notify_all()

    def _run(self) -> None:
        try:
            while True:
                self._write_one()
        except BaseException as error:  # a worker is gone: this one will be ended too
            with self._news:
                self._lost = error
                self._news.notify_all()

    def _write_one(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._waiting is not None and not self._deciding)
            self._begun += 1
            self._writing, self._waiting = self._waiting, None
            job = self._writing
        assert job is not None
        self._together()
        with self._news:
            self._met += 1
            self._news.notify_all()
        try:
            job.run()
        finally:
            job.release()
        self._together()  # no thread takes the next one while another still writes: training would wait for it
        with self._news:
            self._writing = None
            self._news.notify_all()
