"""The machine that an agent is on: its processes, its folders, and the resources of the pilot's workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

from elastic.link.address import plain
from elastic.link.wire import Message
from elastic.node import devices, shared_folder
from elastic.node.container import Container
from elastic.node.hang_detection import HangDetector
from elastic.node.orphans import kill_all_below
from elastic.node.process import Child, Contained, NodeProcess
from elastic.node.scratch import Scratch

_SCANCEL_S = 5.0
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_COUNTED = "oom_kill"


class Machine(Protocol):
    """The machine of an agent; `environ` and `pid` are the agent's own."""

    environ: Mapping[str, str]
    pid: int
    detector: HangDetector
    memory_kills: MemoryKills

    def variables(self, workers: int) -> Mapping[str, str]:
        """Return the node process's variables for the machine's folder, cores and GPUs."""

    def interface_of(self, writer: asyncio.StreamWriter | None) -> str | None:
        """Return the name of the interface that holds the connection's local address; None if it is unknown."""

    async def start(
        self,
        image: Container | None,
        interpreter: str,
        backend: str,
        arguments: Sequence[str],
        cwd: str,
        environ: Mapping[str, str],
    ) -> tuple[NodeProcess, list[str]]:
        """Start the node process, or return the command of the step that the driver is to start instead.

        Raises OSError, and ContainerError with what to do.
        """

    def probe(self, message: Message, answer: Callable[[Message], None]) -> None:
        """Look at a shared folder (see elastic.node.shared_folder), and have the loop call `answer`."""

    def leave(self, *, cancels: bool) -> None:
        """Kill what is left below the agent, give up its allocation if it `cancels` that, and clean up."""


class ThisMachine:
    """The machine of this process; raises OSError if it has no place for a temporary folder."""

    def __init__(self) -> None:
        self.environ: Mapping[str, str] = os.environ
        self.pid = os.getpid()
        self.detector = HangDetector()
        self.memory_kills = MemoryKills()
        self._scratch = Scratch()
        self._scratch.sweep()

    def variables(self, workers: int) -> Mapping[str, str]:
        """See Machine."""
        threads = self.environ.get("OMP_NUM_THREADS") or str(threads_per_worker(workers))
        return {"TMPDIR": self._scratch.path, "OMP_NUM_THREADS": threads, **devices.of_node(self.environ)}

    def interface_of(self, writer: asyncio.StreamWriter | None) -> str | None:
        """See Machine."""
        return interface_of(writer)

    async def start(
        self,
        image: Container | None,
        interpreter: str,
        backend: str,
        arguments: Sequence[str],
        cwd: str,
        environ: Mapping[str, str],
    ) -> tuple[NodeProcess, list[str]]:
        """See Machine."""
        if image is not None:
            return await Contained.start(image, interpreter, backend, arguments, environ)
        return await Child.start([interpreter, "-m", "elastic.node", backend], arguments, cwd, environ), []

    def probe(self, message: Message, answer: Callable[[Message], None]) -> None:
        """See Machine. In a thread of its own: a file server that hangs holds up neither the agent nor other probes."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            found = shared_folder.probed(message, node_name(self.environ))
            with contextlib.suppress(RuntimeError):  # the agent is ending
                loop.call_soon_threadsafe(answer, found)

        threading.Thread(target=look, name="bft-probe", daemon=True).start()

    def leave(self, *, cancels: bool) -> None:
        """See Machine."""
        # Workers die with the node process; their descendants have to be found, wherever they went.
        killed = kill_all_below(self.pid)
        cancelling = None
        if cancels:
            with contextlib.suppress(OSError, KeyError):
                argv = ["scancel", self.environ["SLURM_JOB_ID"]]
                cancelling = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._scratch.leave(killed)
        if cancelling is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                cancelling.wait(_SCANCEL_S)


def node_name(environ: Mapping[str, str]) -> str:
    """Return the name of the node, as Slurm has it or else as the host has it."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def workers_per_node(environ: Mapping[str, str]) -> int:
    """Return the number of workers: one for each GPU that this pilot may use, one without GPUs."""
    return max(1, devices.count(environ))


def threads_per_worker(workers: int) -> int:
    """Return the cores for each of this many workers on the node, at least 1; two threads of a core count once."""
    cores = {_core(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores) // workers)


def interface_settings(names: Iterable[str], interface: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the environment variables `names`, except for those that the user has set."""
    # NCCL takes a bare name for a prefix: eth1 would match eth10 too.
    forms = {"NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: forms.get(name, interface) for name in names if interface and not environ.get(name)}


def interface_of(writer: asyncio.StreamWriter | None) -> str | None:
    """Return the name of the interface that holds the connection's local address; None if it is unknown.

    gloo and NCCL must be told it, and it differs from node to node. A second address of an interface may have a label
    of its own ("eth0:1"): the interface's name is returned.
    """
    if writer is None:
        return None
    import psutil  # imported here, as an agent has to be up before it is needed

    local = ip_address(plain(writer.get_extra_info("sockname")[0]))
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            held = ip_address(plain(address.address))
            # All of 127.0.0.0/8 belongs to the loopback interface, which shows one address of it.
            if held == local or (held.is_loopback and local.is_loopback):
                return str(name).partition(":")[0]
    return None


class MemoryKills:
    """Out-of-memory kills in this process's control group since this was made; without a count there are none."""

    def __init__(self, groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = _kills_file(groups, root)
        self._before = self._count()

    def more(self) -> bool:
        """Whether there were any since the last call."""
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        try:
            lines = self._file.read_text().splitlines() if self._file is not None else []
            return sum(int(count) for name, _, count in (line.partition(" ") for line in lines) if name == _COUNTED)
        except (OSError, ValueError):
            return 0


def _kills_file(groups: Path, root: Path) -> Path | None:
    """Return the file with the count, of cgroup version 1 or 2.

    In version 1 it is that of the agent's step, which has its children in it unless they are in an image. In version 2
    it is that of the whole job, which includes all steps: a container may be a step of its own.
    """
    try:
        listed = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return None
    paths = {names: path for _, names, path in (line for line in listed if len(line) == 3)}
    if "memory" in paths:  # version 1, or both at once
        return root / "memory" / paths["memory"].lstrip("/") / "memory.oom_control"
    if "" not in paths:
        return None
    group = Path(paths[""].lstrip("/"))
    job = next((one for one in (group, *group.parents) if one.name.startswith("job_")), group)
    return root / job / "memory.events"


def _core(cpu: int) -> str:
    try:
        return Path(_SIBLINGS.format(cpu)).read_text()
    except OSError:
        return str(cpu)
