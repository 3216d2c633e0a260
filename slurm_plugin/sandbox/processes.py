"""Finding and ending the processes of one private cluster, whatever their parents are by now.

Step daemons and job processes leave the process tree of the daemon that started them, so pid files alone miss them.
Their environment identifies them: daemons and step daemons inherit MARK, job processes carry the cluster's SLURM_CONF
and a job id, or a lease. A client that merely uses the cluster's environment has neither and is left alone.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "BFT_SANDBOX_ROOT"
# The srun by which a driver runs an agent no longer belongs to the driver's own job, and outlives it.
_LEASE = b"BFT_LEASE"
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    """A live process of a private cluster; `is_daemon` is False for a process of a job."""

    pid: int
    root: str
    is_daemon: bool


def processes() -> list[Process]:
    """List every process of every private cluster that this user may access."""
    found = (_look(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process is not None]


def of_root(root: Path) -> list[Process]:
    """List the processes of the cluster in `root`."""
    return [process for process in processes() if process.root == str(root)]


def end(root: Path, grace_s: float, limit_s: float) -> list[int]:
    """End all processes of the cluster in `root` and return the pids that are left after `limit_s`.

    Daemons are killed first, so that nothing new starts; job processes get SIGTERM and are killed after `grace_s`.
    """
    start_s = time.monotonic()
    asked: set[int] = set()
    while left := [process for process in of_root(root) if process.pid != os.getpid()]:
        waited_s = time.monotonic() - start_s
        if waited_s > limit_s:
            return [process.pid for process in left]
        for process in left:
            if process.is_daemon or waited_s >= grace_s:
                _signal(process, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                _signal(process, signal.SIGTERM)
        time.sleep(_POLL_S)
    return []


def terminate(root: Path, pid: int) -> bool:
    """Send SIGTERM to one daemon of the cluster in `root`; False if this pid is not one of them (any more)."""
    found = _look(pid)
    if found is None or found.root != str(root) or not found.is_daemon:
        return False
    _signal(found, signal.SIGTERM)
    return True


def _look(pid: int) -> Process | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # the process is gone, or belongs to another user
        return None
    if MARK.encode() not in environ and b"SLURM_CONF=" not in environ:
        return None
    variables = dict(item.split(b"=", 1) for item in environ.split(b"\0") if b"=" in item)
    if root := variables.get(MARK.encode()):
        return Process(pid, os.fsdecode(root), is_daemon=True)
    conf = Path(os.fsdecode(variables.get(b"SLURM_CONF", b"")))
    if conf.name == "slurm.conf" and (b"SLURM_JOB_ID" in variables or _LEASE in variables):
        return Process(pid, str(conf.parent), is_daemon=False)
    return None


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process: a pidfd pins it while its identity is checked again, so no reused pid is hit."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if _look(process.pid) == process:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass
    finally:
        os.close(descriptor)
