"""Processes that outlive the worker that started them: data loaders, services, background processes of a script.

Every worker adopts its own orphans while it lives; the node process and the agent adopt those of processes that ended
below them (elastic.link.child_process.adopt_orphans). So no process of a script ever leaves the tree below its pilot's
agent, and a child of the node process that it did not start itself is left from an ended worker. Only /proc is read:
this runs in the user's Python too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from math import inf

_PASSES = 20
"""A process that forks during a search is found on the next pass; a fork bomb is left to Slurm."""

_SETTLE_S = 0.5
_LOOK_S = 0.002

_TRACKER_S = 10.0
"""A process that looks like a tracker and lives this long after its worker is no tracker, or hangs."""


def parents() -> dict[int, int]:
    """Return the parent of every process that has not ended, by process id."""
    return {pid: parent for pid, state, parent in _processes() if state not in "ZX"}


def below(roots: Iterable[int], parent_of: dict[int, int] | None = None) -> list[int]:
    """Return all living descendants of some processes, without these, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if parent_of is None else parent_of).items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    ahead = list(roots)
    while ahead:
        ahead = [child for parent in ahead for child in children.get(parent, ())]
        found += ahead
    return found


def kill_trees(roots: Iterable[int]) -> None:
    """Send SIGKILL to some processes and all their descendants, without waiting for their end."""
    roots = list(roots)
    if not roots:
        return
    # Collect them before the first is killed: once its parent has ended, a process is no longer a descendant.
    for pid in [*roots, *below(roots)]:
        _kill(pid)


def kill_all_below(me: int) -> set[int]:
    """Kill every descendant of this process, which has adopted their orphans, until there are no new ones.

    Returns the killed processes; does not wait for their end.
    """
    killed: set[int] = set()
    for _ in range(_PASSES):
        fresh = set(below([me])) - killed
        if not fresh:
            break
        for pid in fresh:
            _kill(pid)
        killed |= fresh
    return killed


class Leftovers:
    """A node process's record of its own children; all its other children are left from ended workers."""

    def __init__(self) -> None:
        self._own = set(_children())
        self._trackers: dict[int, float] = {}
        self.remain = False
        """Whether something was still there at the last look."""

    def clear(self, workers: Iterable[int]) -> None:
        """End what workers other than the living ones have left, and reap ended processes.

        Python's resource trackers are left to end by themselves: they remove a dead worker's named semaphores and
        shared memory as soon as no other of its processes lives.
        """
        known = self._own | set(workers)
        left = [pid for pid in _children() if pid not in known]
        now_s = time.monotonic()
        self._trackers = {pid: self._trackers.get(pid, now_s) for pid in left if _is_tracker(pid)}
        kill_trees(pid for pid in left if now_s - self._trackers.get(pid, -inf) > _TRACKER_S)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self.remain = bool(left)

    def settle(self, workers: Iterable[int]) -> None:
        """Do as `clear`, and wait a moment until they are gone: a process holds its GPU's memory until its end.

        Whatever remains has to be cleared again later: on a busy machine a tracker may need seconds.
        """
        workers = list(workers)
        deadline_s = time.monotonic() + _SETTLE_S
        self.clear(workers)
        while self.remain and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            self.clear(workers)


def _children() -> list[int]:
    """Return the children of this process, ended ones included."""
    me = os.getpid()
    return [pid for pid, _, parent in _processes() if parent == me]


def _processes() -> Iterator[tuple[int, str, int]]:
    """Yield id, state and parent of every process, including ended ones that are not yet reaped."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_of(int(name))) is not None:
            yield int(name), fields[0], int(fields[1])


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third, the state, on; None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name comes first and may hold anything, even brackets and spaces.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # A process that ends while it is read leaves an empty file.
    return fields or None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
