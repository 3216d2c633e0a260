"""Cleaning a node between one worker and the next: of processes (leftovers) and of shared memory (segments)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection

from elastic.base.timing import KILLED_S, SAMPLE_S
from elastic.node.orphans import Leftovers, kill_trees
from elastic.node.shared_memory import Segments

_LOOK_S = 0.002


class NodeCleanup:
    """The upkeep of one node process, to be made before its first worker. `workers` are the ids of its living workers.

    `helpers` returns the node process's own children that were started later and belong to no worker.
    """

    def __init__(self, helpers: Callable[[], Collection[int]] = tuple) -> None:
        self._helpers = helpers
        self._leftovers = Leftovers()
        self._segments = Segments(tempfile.gettempdir())
        self._next_s = 0.0
        self._doomed: set[int] = set()

    def look(self, workers: Collection[int]) -> dict[int, int]:
        """Clear what ended workers left, and note which shared memory each worker has; cheap, to be called often.

        Returns the exit codes, as subprocess gives them, of the workers that have ended, by id; they are not reaped.
        """
        # Forget a process as soon as it is gone: another worker may get its id later.
        self._doomed = {pid for pid in self._doomed if _lives(pid)}
        ended = {pid: rc for pid in workers if (rc := exit_code(pid)) is not None}
        due = time.monotonic() >= self._next_s
        if ended or (due and self._leftovers.remain):
            # Forks of a worker hold the descriptor that its parent waits on: while one lives, the worker's end goes
            # unnoticed.
            self._leftovers.clear((*workers, *self._helpers()))
            self._segments.ended(set(workers) - ended.keys())
        if due:
            self.sample(workers)
        return ended

    def sample(self, workers: Collection[int]) -> None:
        """Note now which shared memory each worker has."""
        self._segments.sample(workers)
        self._next_s = time.monotonic() + SAMPLE_S

    def kill(self, doomed: Collection[int], workers: Collection[int]) -> None:
        """Kill some of the workers with all processes that they started."""
        if doomed:
            self._segments.sample(workers)
            kill_trees(doomed)
            self._doomed.update(doomed)

    def wait_for_killed(self) -> None:
        """Wait until the killed workers have ended, at most KILLED_S: until then they hold their GPU's memory.

        Usually a worker is gone at once; with gigabytes of pinned memory the kernel takes seconds to unpin it.
        """
        deadline_s = time.monotonic() + KILLED_S
        while self._doomed and time.monotonic() < deadline_s:
            self._doomed = {pid for pid in self._doomed if _lives(pid)}
            if self._doomed:
                time.sleep(_LOOK_S)
        self._doomed.clear()

    def settle(self, workers: Collection[int]) -> None:
        """Clear what ended workers left (`workers` are the living ones); returns when it is gone, or after a moment."""
        self._leftovers.settle((*workers, *self._helpers()))
        self._segments.ended(workers)


def exit_code(pid: int) -> int | None:
    """Return a child's exit code, None while it lives; its exit status remains to be waited for."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if seen is None:
        return None
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def _lives(pid: int) -> bool:
    """Whether a child has not ended yet; its exit status remains to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
