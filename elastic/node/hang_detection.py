"""The state of a worker that does not answer, as the kernel shows it: stopped, without a sign of life, or at work.

One call can hold Python's lock for minutes (json.loads of a data set), and meanwhile no thread of the worker answers:
its silence alone proves nothing. A process is identified by its start time, in seconds since boot, so that neither a
clock that is set nor a reused process id ends another process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from elastic.base.timing import BUSY_TIMES, FROZEN_S
from elastic.link.wire import Message
from elastic.node.orphans import below, stat_of

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

_LIVELY_SHARE = 0.01
"""Threads that only wait and poll, as NCCL's do beside a hung device, use less of a CPU than this."""

_SLACK_S = 1.0
"""The driver heard the worker's last answer a moment after it was given, and the question takes a moment too."""

_GENERATIONS = 64
"""Workers are children of the node process; a user's launcher may stand in between."""


@dataclass(frozen=True)
class Vitals:
    """One process as the kernel shows it; `began_s` is since boot, `work` counts faults and bytes read."""

    state: str
    parent: int
    began_s: float
    cpu_s: float
    work: int

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in "Tt"

    @property
    def over(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in "ZX"


def vitals_of(pid: int) -> Vitals | None:
    """Read a process's vitals; returns None if there is no such process."""
    fields = stat_of(pid)
    if fields is None:
        return None
    # counted from the state, the third field of proc(5): parent 4, major faults 12, utime 14, stime 15, starttime 22
    cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
    return Vitals(fields[0], int(fields[1]), int(fields[19]) * _TICK_S, cpu_s, int(fields[9]) + _read_bytes(pid))


def _read_bytes(pid: int) -> int:
    """Return the bytes that the process has read: a call that holds Python's lock may wait for a disk, not compute."""
    read = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            if line.startswith((b"rchar:", b"read_bytes:")):
                read += int(line.split()[1])
    return read


def descends(pid: int, ancestor: int, vitals_of: Callable[[int], Vitals | None] = vitals_of) -> bool:
    """Whether a process was started by `ancestor` or by a descendant of it."""
    for _ in range(_GENERATIONS):
        found = vitals_of(pid)
        if found is None or found.parent == 0:
            return False
        pid = found.parent
        if pid == ancestor:
            return True
    return False


def on_this_host(pid: int, node_pid: int) -> int:
    """Return the id on this host of a process that calls itself `pid`; some runtimes give containers ids of their own.

    `pid` is read in the namespace of the node process; returns 0 if there is no such process.
    """
    if len(_ids_of(node_pid)) < 2:
        return pid
    return next((other for other in below([node_pid]) if _ids_of(other)[-1:] == [pid]), 0)


def _ids_of(pid: int) -> list[int]:
    """Return a process's ids, from this namespace's to that of its own."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return list(map(int, line.split()[1:]))
    return []


def kill(pid: int, began_s: float) -> bool:
    """Kill the process that began then, and no later one with its id; returns whether it was there to be killed."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = vitals_of(pid)
        if found is None or found.began_s != began_s:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@dataclass
class _Watch:
    """One silence: observed from `first_s` to `last_s`, with `seen` at `since_s` and no sign of life after that."""

    first_s: float
    last_s: float
    since_s: float
    seen: Vitals
    stopped_s: float | None = None


def _age_s(seen: Vitals) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - seen.began_s


class HangDetector:
    """A judge of one node process's workers that do not answer the driver; it ends those that are frozen.

    It looks at the kernel by four functions, in whose place a simulated machine has its own.
    """

    on_this_host = staticmethod(on_this_host)
    vitals_of = staticmethod(vitals_of)
    age_s = staticmethod(_age_s)
    kill = staticmethod(kill)

    def __init__(self, frozen_s: float = FROZEN_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.frozen_s = frozen_s
        self._clock = clock
        self._watched: dict[int, _Watch] = {}
        self._stopped_since_s: float | None = None

    def look(self, node_pid: int, message: Message) -> Message | None:
        """Look at the worker `pid` that has been silent for `silent_s`; returns what to tell the driver, if anything.

        `stepped` is whether it has ended a step: before the first one, while a script imports and reads its data, it
        may wait without a sign of life for as long as a busy one. Only descendants of the node process are ever killed.
        """
        own_pid, silent_s, now_s = int(message["pid"]), float(message["silent_s"]), self._clock()
        pid = self.on_this_host(own_pid, node_pid)
        seen = self.vitals_of(pid)
        self._watched = {key: kept for key, kept in self._watched.items() if now_s - kept.last_s < self.frozen_s}
        if seen is None or seen.over or self.age_s(seen) < silent_s - _SLACK_S:
            return None
        if not descends(pid, node_pid, self.vitals_of):
            return None
        watch = self._watched.get(pid)
        if watch is None or watch.seen.began_s != seen.began_s or now_s - watch.first_s > silent_s + _SLACK_S:
            watch = self._watched[pid] = _Watch(now_s, now_s, now_s, seen)
        watch.last_s = now_s
        watch.stopped_s = (now_s if watch.stopped_s is None else watch.stopped_s) if seen.stopped else None
        lively = _lively(watch, seen, now_s)
        if lively:
            watch.since_s, watch.seen = now_s, seen
        why = self._why_frozen(watch, silent_s, now_s, bool(message["stepped"]))
        if why and self.kill(pid, seen.began_s):
            del self._watched[pid]
            return {"op": "looked", "pid": own_pid, "verdict": "killed", "silent_s": silent_s, "why": why}
        if lively and silent_s >= self.frozen_s:
            return {"op": "looked", "pid": own_pid, "verdict": "busy", "silent_s": silent_s, "why": "it is at work"}
        return None

    def _why_frozen(self, watch: _Watch, silent_s: float, now_s: float, stepped: bool) -> str:
        """Return why to kill a silent worker now; "" to leave it alone."""
        if silent_s < self.frozen_s:
            return ""
        if watch.stopped_s is not None and now_s - watch.stopped_s >= self.frozen_s / 2:
            return "it is stopped"
        still_s = now_s - watch.since_s
        if stepped and still_s >= self.frozen_s:
            return f"it did nothing for {still_s:.0f} s"
        return "that is too long, whatever it does" if silent_s >= BUSY_TIMES * self.frozen_s else ""

    def node_is_frozen(self, node_pid: int) -> bool:
        """Whether the node process has been stopped for too long; to be called repeatedly."""
        seen, now_s = self.vitals_of(node_pid), self._clock()
        if seen is None or not seen.stopped:
            self._stopped_since_s = None
            return False
        if self._stopped_since_s is None:
            self._stopped_since_s = now_s
        return now_s - self._stopped_since_s >= self.frozen_s


def _lively(watch: _Watch, seen: Vitals, now_s: float) -> bool:
    """Whether the process has worked since its last sign of life: computed, read or faulted memory in."""
    used_s = seen.cpu_s - watch.seen.cpu_s
    return used_s > max(_TICK_S, _LIVELY_SHARE * (now_s - watch.since_s)) or seen.work > watch.seen.work
