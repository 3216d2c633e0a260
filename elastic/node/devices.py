"""The GPUs of a pilot's workers, of any vendor, read from the variables that Slurm or the user set.

Every worker sees all GPUs of its pilot, in the same order, and takes the one of its local rank: scripts for torchrun
and Horovod say `set_device(local_rank)`, and NCCL needs to see its peers' GPUs. They are dealt out one each, round
robin, only if that is impossible: with more workers than GPUs, or with MIG, as a process can use one MIG part only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

_NVIDIA = ("CUDA_VISIBLE_DEVICES",)
_AMD = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The innermost first: the GPUs that ROCR_VISIBLE_DEVICES leaves are numbered anew, and the others choose among them.
HIP reads CUDA_VISIBLE_DEVICES too."""

_INTEL = ("ZE_AFFINITY_MASK",)

_VISIBLE = (*_NVIDIA, *(name for name in _AMD if name not in _NVIDIA), *_INTEL)

_COUNTED = "SLURM_GPUS_ON_NODE"
_LISTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")
"""For sites where the variables above are not set (`no_gpu_env` in gres.conf): the number of GPUs, and which ones."""

_NAMES = re.compile(r"\d+(\.\d+)?|(GPU|MIG)-[\w/.-]+", re.ASCII)
"""A number, also of a part of an Intel GPU, or a name in the style of NVIDIA's and AMD's drivers."""

_AMD_DRIVER, _NVIDIA_DRIVER = Path("/dev/kfd"), Path("/dev/nvidiactl")


def names(value: str) -> tuple[str, ...]:
    """Return the GPUs that a visibility variable leaves, in order; none for `NoDevFiles`, `-1`, `none` and the like.

    The value is read as the drivers read it: an invalid name hides all after it, and a name given twice hides all GPUs.
    """
    found: list[str] = []
    for part in value.split(","):
        if not _NAMES.fullmatch(name := part.strip()):
            break
        found.append(name)
    return tuple(found) if len(set(found)) == len(found) else ()


def count(environ: Mapping[str, str]) -> int:
    """Return how many GPUs this pilot's workers have; 0 for none."""
    if any(name in environ for name in _VISIBLE):
        return next((len(names(environ[name])) for name in _innermost(environ)), 0)
    if (counted := environ.get(_COUNTED, "").strip()).isdecimal():
        return int(counted)
    return next((number for name in _LISTED if (number := _counted(environ.get(name, "")))), 0)


def of_node(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the node process with which all its workers number the GPUs alike.

    The user's own setting for the order of CUDA's numbers is kept.
    """
    settings = {}
    # Slurm counts by bus, as nvidia-smi does; CUDA puts the fastest GPU first, which may be another one with mixed
    # models.
    if not environ.get("CUDA_DEVICE_ORDER"):
        settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # Without flags in gres.conf Slurm sets all vendors' variables alike, and on AMD one would filter what the other has
    # left: nothing, for "2,3".
    outer = names(environ.get("ROCR_VISIBLE_DEVICES", ""))
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if outer and names(environ.get(name, "")) == outer and _is_amd():
            settings[name] = ",".join(str(number) for number in range(len(outer)))
    return settings


def of_worker(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a worker with this environment: none if it is to see all GPUs of the node."""
    local_rank, workers = int(environ.get("BFT_LOCAL_RANK", "0")), int(environ.get("BFT_WORKERS_PER_NODE", "1"))
    settings = {}
    for name in _innermost(environ):
        found = names(environ[name])
        if found and (len(found) < workers or (len(found) > 1 and found[0].startswith("MIG-"))):
            settings[name] = found[local_rank % len(found)]
    return settings


def unusable() -> str:
    """Return why workers, as forks of this process, can use no GPU; "" if they can.

    Call this after the imports that workers need: a GPU driver does not share with forks what it has given to a
    process, and only a fork shows whether torch has asked the driver for anything, if only for the number of GPUs.
    """
    torch = sys.modules.get("torch")
    kinds = [getattr(torch, name, None) for name in ("cuda", "xpu")]
    pid = os.fork()
    if pid == 0:
        os._exit(any(getattr(kind, "_is_in_bad_fork", bool)() for kind in kinds))
    if not os.waitpid(pid, 0)[1]:
        return ""
    return (
        "workers can use no GPU: something that Python runs at its start (sitecustomize, a .pth file) asks torch "
        "for GPUs, and workers are forks; have it do so in the script"
    )


def _innermost(environ: Mapping[str, str]) -> list[str]:
    """Return, for each vendor, the variable that decides which of its GPUs are left, if one is set and leaves any."""
    ruling = (next((name for name in group if names(environ.get(name, ""))), "") for group in _groups())
    return [name for name in ruling if name]


def _groups() -> tuple[tuple[str, ...], ...]:
    return (_AMD, _INTEL) if _is_amd() else (_NVIDIA, tuple(name for name in _AMD if name not in _NVIDIA), _INTEL)


def _is_amd() -> bool:
    return _AMD_DRIVER.exists() and not _NVIDIA_DRIVER.exists()


def _counted(value: str) -> int:
    """Return how many numbers a list such as "0-3,6" has; 0 if it is no such list."""
    number = 0
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return 0
        number += int(last or first) - int(first) + 1
    return max(0, number)
