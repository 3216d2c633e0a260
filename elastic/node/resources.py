"""The resources of a pilot's workers: their number, the cores of each, and the network interface."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from elastic.node import devices

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


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


def _core(cpu: int) -> str:
    try:
        return Path(_SIBLINGS.format(cpu)).read_text()
    except OSError:
        return str(cpu)
