"""On what node `bft size cpu` is: its CPUs, memory and GPUs, by Slurm inside an allocation, and else by the kernel."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bftd import config
from bftd.cli import common
from bftd.errors import UsageError
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from sizing.cpu.lines import Node

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_MEMINFO = Path("/proc/meminfo")


def gpus_used(environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA) -> int:
    """How many GPUs a command uses of which nobody said so: those of the allocation, or that the environment names.

    Raises UsageError on a machine with GPUs of which it may use any number.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS"):
        if (said := environ.get(name, "").rpartition(":")[2]).isdigit():
            return int(said)
    if "SLURM_JOB_ID" in environ:
        return 0
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([word for word in named.split(",") if word.strip() not in ("", "-1", "NoDevFiles")])
    there = _gpus(driver)
    if there:
        raise UsageError(f"this machine has {there} GPU{'s'[: there - 1]}: say by --gpus how many the command uses")
    return 0


def here(environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA) -> Node | None:
    """The node that the job is on; None where nothing is known of it."""
    from sizing.cpu.lines import Node

    if "SLURM_JOB_ID" in environ:
        with suppress(SlurmError):
            nodes = common.slurm_client(config.load_found(None)).nodes()
            name = environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
            if (mine := nodes.get(name)) is not None:
                return Node(mine.cpus, mine.memory_bytes, sum(mine.gpus.values()))
    cpus, memory = os.cpu_count(), _memory_bytes()
    return Node(cpus, memory, _gpus(driver)) if cpus and memory else None


def _gpus(driver: Path) -> int:
    with suppress(OSError):
        return len(list(driver.iterdir()))
    return 0


def _memory_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemTotal:"))
        return int(line.split()[1]) * 1024
    return 0
