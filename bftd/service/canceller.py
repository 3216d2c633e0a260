"""Cancellation of jobs in a thread of its own, so that nobody waits; each job at most once at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from slurm_plugin.errors import SlurmError

log = logging.getLogger("bftd")


class Canceller:
    """A thread that calls `cancel`, which may block, with job ids.

    Slurm's refusal is logged once, until a call succeeds.
    """

    def __init__(self, cancel: Callable[[list[str]], None]) -> None:
        self._cancel = cancel
        self._thread = ThreadPoolExecutor(1, "cancel")
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._running: Future[None] | None = None
        self._complaints: set[str] = set()

    def ask(self, job_ids: list[str]) -> None:
        """Have jobs cancelled; those already waiting are not added again."""
        with self._lock:
            fresh = [id_ for id_ in job_ids if id_ not in self._asked]
            self._asked.update(fresh)
        if fresh:
            self._running = self._thread.submit(self._run, fresh)

    def stop(self, wait_s: float) -> None:
        """Accept no more jobs, drop those that wait, and give a running cancellation `wait_s` to end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], timeout=wait_s)

    def _run(self, job_ids: list[str]) -> None:
        try:
            self._cancel(job_ids)
        except SlurmError as error:
            # a job that may not be cancelled is asked for again and again: log it once
            if str(error) not in self._complaints:
                log.warning("%s", error)
            self._complaints.add(str(error))
        else:
            self._complaints.clear()
        finally:
            with self._lock:
                self._asked.difference_update(job_ids)
