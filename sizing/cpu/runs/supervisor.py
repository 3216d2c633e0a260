"""The guard beside the user's command: it confines it to CPUs, hears its progress, and ends all that it started.

It is run as a program by its path, with one argument (JSON), and imports nothing of ours, so that it starts quickly.
The command's output goes to descriptor 1, the guard's messages to 2: lines of MARK followed by JSON. Descriptor 0 is
its lifeline: when that ends, everything ends. The guard adopts the command's orphans, so a process that leaves its
session or its parent stays below the guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MARK = "\x02bft "
PROGRESS = "BFT_PROGRESS"  # as in elastic/worker/progress_pipe.py
_KILLED_WITHIN_S = 10.0
_AFTER_END_S = 0.5  # for processes that the command leaves behind when it ends by itself
_LOOK_S = 1.0
_LOOK_SHARE = 0.02  # share of a CPU's time for looking at memory
_MOST_CPUS = 8192
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)  # before any fork: it cannot be loaded safely after one


def say(op: str, **what: Any) -> None:
    """Send one message to the caller."""
    with contextlib.suppress(OSError):
        os.write(2, f"{MARK}{json.dumps({'op': op, **what})}\n".encode())


def choose(allowed: set[int], count: int) -> list[int]:
    """Return `count` of the CPUs, whole cores first and close together, as Slurm gives them to a task."""

    def place(cpu: int) -> tuple[int, int, int]:
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            return 0, cpu, cpu
        return package, core, cpu

    return sorted(sorted(sorted(allowed)[:_MOST_CPUS], key=place)[:count])


def describe() -> dict[str, Any]:
    """Describe this node: its name, usable CPUs, their model and the GPUs' models."""
    model = ""
    with contextlib.suppress(OSError):
        rows = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines())
        model = next((value.strip() for key, _, value in rows if key.strip() in ("model name", "Model")), "")
    gpus = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            rows = (line.partition(":") for line in file.read_text(errors="replace").splitlines())
            gpus += [value.strip() for key, _, value in rows if key.strip() == "Model"]
    return {
        "host": socket.gethostname().partition(".")[0],
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cpu_model": model or os.uname().machine,
        "gpus": gpus,
        "cgroup": (parent := _cpuset_parent()) is not None and str(parent),
    }


def _cpuset_parent() -> Path | None:
    """Return the folder of cgroup v2 in which this user may make a cpuset; None if there is none.

    It is beside our own group, because a group with processes in it cannot hand controllers on. None for root, who may
    write anywhere, even where a service manager does not expect it.
    """
    if os.geteuid() == 0:
        return None
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        root = next((Path(row[1]) for row in mounts if row[2] == "cgroup2"), None)
        rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mine = next((row[2].lstrip("/") for row in rows if row[0] == "0"), "")
        if root is None or not mine:
            return None
        parent = (root / mine).parent
        handed = (parent / "cgroup.subtree_control").read_text().split()
        if "cpuset" in handed and os.access(parent, os.W_OK) and os.access(parent / "cgroup.procs", os.W_OK):
            return parent
    except OSError:
        pass
    return None


def _cpuset(cpus: list[int]) -> Path | None:
    """Make a group for these CPUs; return None if that fails."""
    parent = _cpuset_parent()
    if parent is None:
        return None
    group = parent / f"bft-cpu-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpuset.cpus").write_text(",".join(map(str, cpus)))
        if _listed((group / "cpuset.cpus.effective").read_text()) == set(cpus):
            return group
    except (OSError, ValueError):
        pass
    with contextlib.suppress(OSError):
        group.rmdir()
    return None


def _is_in(group: Path | None, pid: int) -> bool:
    """Whether a process is in a group."""
    try:
        return group is not None and str(pid) in (group / "cgroup.procs").read_text().split()
    except OSError:
        return False


def _listed(text: str) -> set[int]:
    """Return the numbers of a list as the kernel prints it: 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


class Tree:
    """The processes below this one: their list, their usage, and their end."""

    def __init__(self, cpus: list[int]) -> None:
        self._cpus = frozenset(f"cpu{cpu}" for cpu in cpus)
        self.memory_bytes = 0
        """The most that they had together, of memory that the kernel cannot drop."""
        self._read: dict[tuple[int, str], int] = {}
        self._cpu: dict[tuple[int, str], float] = {}
        self._parents: dict[tuple[int, str], int] = {}
        self._next_s = 0.0

    def living(self) -> dict[int, list[str]]:
        """Return all descendants that have not ended, with their fields of /proc/PID/stat from the state on."""
        found: dict[int, list[str]] = {}
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (fields := _stat(int(name))) and fields[0] not in "ZX":
                found[int(name)] = fields
                children.setdefault(int(fields[1]), []).append(int(name))
        mine: dict[int, list[str]] = {}
        ahead = list(children.get(os.getpid(), ()))
        while ahead:
            pid = ahead.pop()
            if pid not in mine:
                mine[pid] = found[pid]
                ahead += children.get(pid, ())
        return mine

    def look(self, *, last: bool = False) -> None:
        """Report their usage about once a second; less often if so many processes make it slow."""
        now_s, busy_s = time.monotonic(), time.process_time()
        if now_s < self._next_s and not last:
            return
        memory = 0
        tick = os.sysconf("SC_CLK_TCK")
        living = self.living()
        self._forget(living)
        for pid, fields in living.items():
            key = (pid, fields[19])
            self._parents[key] = int(fields[1])
            self._cpu[key] = sum(map(int, fields[11:15])) / tick
            with contextlib.suppress(OSError, ValueError):
                rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
                memory += sum(int(row[1]) * 1024 for row in rows if row[0] in ("Pss_Anon:", "Pss_Shmem:"))
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._read[key] = int(Path(f"/proc/{pid}/io").read_text().split(maxsplit=2)[1])
        self.memory_bytes = max(self.memory_bytes, memory)
        read, cpu_s = sum(self._read.values()), sum(self._cpu.values())
        say("used", memory=self.memory_bytes, read=read, cpu_s=cpu_s, busy_s=self._busy_ticks() / tick, at_s=now_s)
        took_s = time.process_time() - busy_s
        self._next_s = time.monotonic() + max(_LOOK_S, took_s / _LOOK_SHARE)

    def _forget(self, living: dict[int, list[str]]) -> None:
        """Drop counts of ended processes that a living parent waited for: the kernel added them to the parent's."""
        for (pid, began), parent in list(self._parents.items()):
            if parent in living and not (pid in living and living[pid][19] == began) and _stat(pid)[19:20] != [began]:
                for counts in (self._read, self._cpu, self._parents):
                    counts.pop((pid, began), None)

    def _busy_ticks(self) -> int:
        """Return the ticks of our CPUs' work since boot, for any process, a hypervisor's guests included."""
        with contextlib.suppress(OSError, ValueError):
            rows = (line.split() for line in Path("/proc/stat").read_text().splitlines())
            return sum(sum(map(int, (*row[1:4], *row[6:9]))) for row in rows if row[0] in self._cpus)
        return 0

    def end(self, grace_s: float) -> int:
        """Send SIGTERM to all, then SIGKILL to those left, until none is left; return how many would not end."""
        _signal(self.living(), signal.SIGTERM)
        ends_s = time.monotonic() + grace_s
        while self._reaped() and time.monotonic() < ends_s:
            time.sleep(0.02)
        ends_s = time.monotonic() + _KILLED_WITHIN_S
        while (left := self._reaped()) and time.monotonic() < ends_s:
            _signal(left, signal.SIGKILL)
            time.sleep(0.01)
        return len(left)

    def _reaped(self) -> dict[int, list[str]]:
        """Reap the ended processes; return those that live."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return self.living()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _signal(pids: dict[int, list[str]], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def guard(request: dict[str, Any]) -> int:
    """Run the command of a request until it ends, or the guard is told to end it."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: told.append(1))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    allowed = os.sched_getaffinity(0)
    if len(allowed) < request["cpus"]:
        say("short", has=len(allowed))
        return 1
    cpus = choose(allowed, request["cpus"])
    group = _cpuset(cpus) if request.get("cgroup") else None
    folder = tempfile.mkdtemp(prefix="bft-cpu-")
    tree = Tree(cpus)
    try:
        fifo = f"{folder}/progress"
        os.mkfifo(fifo, 0o600)
        heard = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        relayed = -1
        out = 1
        if request.get("relay"):
            relayed, out = os.pipe2(os.O_CLOEXEC)
        try:
            child = subprocess.Popen(
                request["command"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**request.get("env", {}), **os.environ, PROGRESS: fifo},
                preexec_fn=lambda: _prepared(cpus, group),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            say("unstartable", why=getattr(error, "strerror", None) or str(error))
            return 1
        # Our copy must not keep the pipe open when all writers are gone.
        if relayed >= 0:
            os.close(out)
        else:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        narrowed = len(allowed) > len(cpus)
        step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
        say("began", cpus=cpus, narrowed=narrowed, cgroup=_is_in(group, child.pid), step=step)
        code = _attended(child.pid, tree, heard, relayed, wake, told)
        tree.look(last=True)
        left = tree.end(request["grace_s"] if code is None else _AFTER_END_S)
        say("ended", code=code, left=left, memory=tree.memory_bytes)
        return 0
    finally:
        tree.end(0.0)
        if group is not None:
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(folder, ignore_errors=True)


def _prepared(cpus: list[int], group: Path | None) -> None:
    """Prepare the child before the command: its own session, only its CPUs, and death with the guard."""
    guard_pid = os.getppid()
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if group is not None:
        with contextlib.suppress(OSError):  # the affinity confines it all the same
            (group / "cgroup.procs").write_text("0")
    os.sched_setaffinity(0, cpus)


def _attended(pid: int, tree: Tree, heard: int, relayed: int, wake: int, told: list[int]) -> int | None:
    """Return the command's exit code, minus the signal's number if one killed it; None if it was told to end."""
    poll = select.poll()
    for descriptor in (0, heard, wake, *([relayed] if relayed >= 0 else [])):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    while not told:
        tree.look()
        ready = {descriptor for descriptor, _ in poll.poll(200)}
        if relayed in ready and not _relay(relayed):
            poll.unregister(relayed)
        if heard in ready:
            _hear(heard)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    while relayed >= 0 and select.select([relayed], [], [], 0)[0] and _relay(relayed):
                        pass
                    _hear(heard)
                    return os.waitstatus_to_exitcode(ended[1])
    return None


def _relay(relayed: int) -> bool:
    """Pass output on; a Slurm step holds it back until a line ends, and a progress bar's never does."""
    chunk = os.read(relayed, 65536).replace(b"\r", b"\n")
    try:
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        return False
    return bool(chunk)


def _hear(heard: int) -> None:
    """Pass on the newest progress that the API wrote: its counts are totals."""
    try:
        lines = os.read(heard, 65536).split(b"\n")
    except BlockingIOError:
        return
    for line in reversed(lines[:-1]):
        with contextlib.suppress(ValueError):
            step, samples, at_s = line.split()
            say("step", step=int(step), samples=int(samples), at_s=float(at_s))
            return


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if asked.get("describe"):
        say("host", **describe())
    else:
        raise SystemExit(guard(asked))
