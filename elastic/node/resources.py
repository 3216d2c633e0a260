"""What a pilot's workers have: how many of them there are, how many cores each, and which network interface."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Where Slurm, or a user, names the GPUs that a process may use: NVIDIA's, AMD's twice, Intel's."""

_NONE = ("NoDevFiles", "-1")
"""What Slurm writes, and users write, for none at all."""

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def workers_per_node(environ: Mapping[str, str]) -> int:
    """One worker a GPU that this pilot may use, one where it has none."""
    told = [environ[name] for name in _GPUS if name in environ]
    if not told:
        count = environ.get("SLURM_GPUS_ON_NODE", "")
        return max(1, int(count)) if count.isdecimal() else 1
    named = next((value for value in told if value), "")
    return max(1, len([gpu for gpu in named.split(",") if gpu and gpu not in _NONE]))


def threads_per_worker(workers: int) -> int:
    """The cores that one of so many workers on this node has for itself, at least 1; two threads of a core are one."""
    cores = {_core(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores) // workers)


def interface_settings(names: Iterable[str], interface: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What to set the environment variables `names` to, those left out that the user has set."""
    # NCCL takes a bare name for a prefix: eth1 would be eth10 too.
    forms = {"NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: forms.get(name, interface) for name in names if interface and not environ.get(name)}


def _core(cpu: int) -> str:
    try:
        return Path(_SIBLINGS.format(cpu)).read_text()
    except OSError:
        return str(cpu)
