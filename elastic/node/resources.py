"""The resources of a pilot's workers: their number, their cores, the network interface, and out-of-memory kills."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from elastic.link.address import plain
from elastic.node import devices

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_COUNTED = "oom_kill"


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
