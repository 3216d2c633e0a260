"""Processes that outlive the worker that started them: data loaders, services, whatever a script put in the background.

Every worker adopts its own orphans while it lives, and the node process and the agent those of whoever ended below
them (elastic.link.child.adopt_orphans). So nothing that a script starts ever leaves the tree below its pilot's agent,
and a child of the node process that it did not start itself is what an ended worker left. Only /proc is read: this runs
in the user's Python too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from math import inf

_PASSES = 20
"""A process that forks while it is looked for is found on the next pass; a fork bomb is left to Slurm."""

_SETTLE_S = 0.5
_LOOK_S = 0.002

_TRACKER_S = 10.0
"""What calls itself a tracker and has not ended so long after its worker is none, or hangs."""


def parents() -> dict[int, int]:
    """The parent of every process that has not ended, by process id."""
    return {pid: parent for pid, state, parent in _processes() if state not in "ZX"}


def below(roots: Iterable[int], parent_of: dict[int, int] | None = None) -> list[int]:
    """All living descendants of some processes, without these, parents before children."""
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
    """Sends SIGKILL to some processes and all their descendants; does not wait for their end."""
    roots = list(roots)
    if not roots:
        return
    # Found before the first is killed: a process whose parent has ended is no descendant of it any more.
    for pid in [*roots, *below(roots)]:
        _kill(pid)


def kill_all_below(me: int) -> set[int]:
    """Kills every descendant of this process, which has adopted their orphans, until there are no new ones.

    Returns who was killed; does not wait for their end.
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
    """A node process's view: which of its children are its own, so that all others are an ended worker's."""

    def __init__(self) -> None:
        self._own = set(_children())
        self._trackers: dict[int, float] = {}
        self.remain = False
        """Whether something was still there when it was looked last."""

    def clear(self, workers: Iterable[int]) -> None:
        """Ends what workers left that are not among the living ones, and buries what has ended.

        Python's resource trackers are left to end by themselves: they remove a dead worker's named semaphores and
        shared memory as soon as nobody else of its processes lives.
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
        """As `clear`, and waits a moment until they are gone: a process that ends holds its GPU's memory until then.

        What remains has to be cleared again later: a machine may be so busy that a tracker needs seconds.
        """
        workers = list(workers)
        deadline_s = time.monotonic() + _SETTLE_S
        self.clear(workers)
        while self.remain and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            self.clear(workers)


def _children() -> list[int]:
    """The children of this process, ended ones included."""
    me = os.getpid()
    return [pid for pid, _, parent in _processes() if parent == me]


def _processes() -> Iterator[tuple[int, str, int]]:
    """Id, state and parent of every process, ended ones that nobody has waited for included."""
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
    """What /proc/PID/stat says from the state on, its third field; None where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name comes first and may hold anything, brackets and spaces too.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # A process that ends while it is read leaves an empty file.
    return fields or None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
