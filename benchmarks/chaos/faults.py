"""Striking and mending each kind of fault."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.chaos.model import BOUND_S, Fault, Violations
from benchmarks.chaos.observer import RegularJobs
from benchmarks.chaos.site import ChaosSite, node_of
from benchmarks.chaos.trainers import Trainers
from bftd.base.errors import BftError

Mend = Callable[[], object]
_OBEYS_S = 6.0
_GONE_S = 20.0
_FILL_S = 0.2
_STARTS = 3
_POLL_S = 0.05


class NotNow(Exception):
    """There is nobody to strike."""


class Faults:
    """The faults that strike a site."""

    def __init__(self, site: ChaosSite, trainers: Trainers, jobs: RegularJobs, violations: Violations) -> None:
        self._site = site
        self._trainers = trainers
        self._jobs = jobs
        self._violations = violations

    def strike(self, fault: Fault) -> tuple[str, Mend | None]:
        """Strike; returns whom, and what ends it, None for what is over at once. Raises NotNow."""
        what, _, who = fault.kind.partition("_")
        try:
            if what in ("kill", "stop"):
                return self._daemon(what) if who == "daemon" else self._process(what, who, fault)
            struck: tuple[str, Mend | None] = getattr(self, f"_{fault.kind}")(fault)
            return struck
        except (psutil.Error, ProcessLookupError):
            raise NotNow from None

    def _process(self, what: str, role: str, fault: Fault) -> tuple[str, Mend | None]:
        process = self._one(role, fault)
        whom = f"{role} {process.pid} on {node_of(process)}"
        if what == "stop":
            process.suspend()
            return whom, lambda: _resume(process)
        if role == "driver":
            job = process.environ()["SLURM_JOB_ID"]
            self._trainers.driver_killed(job)
            whom += f", job {job}"
        process.kill()
        return whom, None

    def _one(self, role: str, fault: Fault) -> psutil.Process:
        found = self._site.of_role(role)
        if not found:
            raise NotNow
        process: psutil.Process = fault.of(found)
        return process

    def _daemon(self, what: str) -> tuple[str, Mend | None]:
        pid = self._site.daemon_pid
        if pid is None:
            raise NotNow
        if what == "stop":
            os.kill(pid, signal.SIGSTOP)
            return "bftd", lambda: os.kill(pid, signal.SIGCONT)
        self._site.stop_daemon(signal.SIGKILL)
        return "bftd", self._start_daemon

    def _start_daemon(self) -> None:
        """Start it, as systemd does again and again: a start takes a minute beside a load of twenty."""
        for _ in range(_STARTS):
            with suppress(BftError):
                self._site.start_daemon()
                return
        self._site.start_daemon()

    def _cut_network(self, fault: Fault) -> tuple[str, Mend]:
        cluster = self._site.cluster
        nodes: tuple[str, ...] = fault.of([*((name,) for name in cluster.node_names), cluster.node_names])

        def mend() -> None:
            for node in nodes:
                cluster.network.mend(node)

        for node in nodes:
            cluster.network.cut(node)
        return ",".join(nodes), mend

    def _full_checkpoints(self, fault: Fault) -> tuple[str, Mend]:
        return self._full("states")

    def _full_ledger(self, fault: Fault) -> tuple[str, Mend]:
        return self._full("ledger")

    def _full(self, name: str) -> tuple[str, Mend]:
        disk, over = self._site.cluster.disks[name], threading.Event()

        def keep() -> None:
            while not over.wait(_FILL_S):
                disk.fill()

        thread = threading.Thread(target=keep, daemon=True)
        disk.fill()
        thread.start()

        def mend() -> None:
            over.set()
            thread.join()
            disk.empty()

        return name, mend

    def _hanging_epilog(self, fault: Fault) -> tuple[str, Mend]:
        path = self._site.cluster.epilog_hangs
        path.touch()
        return "all nodes", path.unlink

    def _restart_slurmctld(self, fault: Fault) -> tuple[str, Mend]:
        number = signal.SIGKILL if fault.pick < 0.5 else signal.SIGTERM
        self._site.end(self._site.pid_of("slurmctld"), number)
        return number.name, self._site.cluster.start_controller

    def _restart_slurmd(self, fault: Fault) -> tuple[str, Mend]:
        node: str = fault.of(self._site.cluster.node_names)
        self._site.end(self._site.pid_of(f"slurmd-{node}"), signal.SIGKILL)
        return node, lambda: self._site.cluster.start_slurmd(node)

    def _ignored_sigterm(self, fault: Fault) -> tuple[str, Mend | None]:
        """Have a worker ignore SIGTERM and do nothing else, and a regular job ask for its node."""
        with self._jobs.paused:
            node = node_of(self._one("worker", fault))
            self._asked("ignore", node)
            self._jobs.submit(1.0, f"--nodelist={node}")
            started = self._site.work / f"regular-{self._jobs.submitted[-1].id}"
            _waited(started.exists, 2 * BOUND_S)
        return node, None

    def _forked_away(self, fault: Fault) -> tuple[str, Mend | None]:
        """Have a worker's script leave a process in a session of its own, and kill the worker."""
        worker = self._one("worker", fault)
        node = node_of(worker)
        note = self._site.work / f"forked-{node}"
        note.unlink(missing_ok=True)
        self._asked("fork", node)
        if not _waited(note.exists, _OBEYS_S):
            raise NotNow
        pid = int(note.read_text())
        with suppress(psutil.Error):
            worker.kill()
        if not _waited(lambda: not Path(f"/proc/{pid}").exists(), _GONE_S):
            self._violations.add("orphan", f"{pid}", f"process {pid} that a script left on {node}")
        return f"{node}, process {pid}", None

    def _asked(self, what: str, node: str) -> None:
        """Ask the worker on a node for something that its script does with its next step; raises NotNow."""
        order = self._site.work / f"{what}-{node}"
        order.touch()
        if not _waited(lambda: not order.exists(), _OBEYS_S):
            order.unlink(missing_ok=True)
            raise NotNow


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.resume()


def _waited(condition: Callable[[], bool], most_s: float) -> bool:
    """Wait for a condition; returns whether it came."""
    until_s = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True
