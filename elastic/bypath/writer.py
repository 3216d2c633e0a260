"""The thread that writes, and how all workers come to write the same states: the newest wins, everywhere the same one.

Each worker has a state that is being written and at most one that waits. A newer one takes the place of the one that
waits on all workers or on none: they vote before, and nobody takes the waiting one between its vote and the exchange.
Who takes it waits at a barrier until all have it. So the waiting states are the same whenever anybody takes one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from elastic.errors import LinkLostError


class Job(Protocol):
    """One state to write."""

    def run(self) -> None:
        """Writes it and tells of it; raises nothing but what a lost group raises."""

    def release(self) -> None:
        """Gives its memory back; called once, when it was written or another took its place."""


class Writer:
    """A thread of one worker that writes states, together with those of the other workers.

    `together` returns when every worker's thread has come to it; it raises when one of them is lost.
    """

    def __init__(self, together: Callable[[], None]) -> None:
        self._together = together
        self._news = threading.Condition()
        self._deciding = False
        self._begun = self._met = 0
        self._waiting: Job | None = None
        self._writing: Job | None = None
        self._lost: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, agree: Callable[[int, int], tuple[int, int]], make: Callable[[], Job]) -> None:
        """Has the state of `make` written next, in the place of one that waits; called by the thread that trains.

        `agree(begun, met)` is a vote of all workers, each with how often it has begun to take a state and how often
        all have met at that: the most that any has begun, and the fewest that any has met.
        """
        while True:
            with self._news:
                if self._lost is not None:  # nobody would write it, and nobody say so
                    raise self._gone() from self._lost
                self._deciding, begun, met = True, self._begun, self._met
            most, fewest = agree(begun, met)
            if most == fewest:
                break
            self._meet(most)
        # Nobody takes it now. Its memory is what the new one's copy is made into: there are never more than two.
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
        """Waits until this worker has taken it, too: all wait for that, and it has to come to the lock."""
        with self._news:
            self._decided()
            self._news.wait_for(lambda: self._met >= times or self._lost is not None)
            if self._lost is not None:
                raise self._gone() from self._lost

    def _gone(self) -> LinkLostError:
        return LinkLostError(f"a worker was lost while a state was written: {self._lost}")

    def drain(self) -> None:
        """Returns when nothing is written or waits any more, or when it cannot be written."""
        with self._news:
            self._news.wait_for(lambda: self._lost is not None or (self._waiting is None and self._writing is None))

    def _decided(self) -> None:
        self._deciding = False
        self._news.notify_all()

    def _run(self) -> None:
        try:
            while True:
                self._write_one()
        except BaseException as error:  # a worker is gone: this one will be ended, too
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
        self._together()  # nobody takes the next one while another still writes: training would wait for it
        with self._news:
            self._writing = None
            self._news.notify_all()
