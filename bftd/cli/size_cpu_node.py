"""On what node `bft size cpu` is: its CPUs, memory and GPUs, by Slurm inside an allocation, and else by the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bftd import config
from bftd.cli import common
from bftd.errors import UsageError
from slurm_plugin import nodeset, parse
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from sizing.cpu.lines import Node

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_MEMINFO = Path("/proc/meminfo")


def gpus_used(environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA) -> int:
    """How many GPUs a command uses of which nobody said so: those of the allocation, or that the environment names.

    Raises UsageError on a machine with GPUs of which it may use any number.
    """
    if job := environ.get("SLURM_JOB_ID", ""):
        said = environ.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2]
        return int(said) if said.isascii() and said.isdigit() else _gpus_of_job(job)
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([word for word in named.split(",") if word.strip() not in ("", "-1", "NoDevFiles")])
    if there := _gpus(driver):
        raise UsageError(f"this machine has {there} GPU{'s'[: there - 1]}: say by --gpus how many the command uses")
    return 0


def here(environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA) -> Node | None:
    """The node that is profiled: the allocation's first or this one; None where nothing is known of it."""
    from sizing.cpu.lines import Node

    if "SLURM_JOB_ID" in environ:
        with suppress(SlurmError):  # also where what the environment lists is no node set
            listed = nodeset.expand(environ.get("SLURM_JOB_NODELIST", ""))
            name = environ.get("SLURMD_NODENAME") or (listed[0] if listed else "")
            mine = common.slurm_client(config.load_found(None)).nodes().get(name)
            return None if mine is None else Node(mine.cpus, mine.memory_bytes, sum(mine.gpus.values()))
        return None
    cpus, memory = os.cpu_count(), _memory_bytes()
    return Node(cpus, memory, _gpus(driver)) if cpus and memory else None


def _gpus_of_job(job: str) -> int:
    """On each node of a job, by what it asked for: salloc's environment says nothing of it; 0 where Slurm is silent."""
    client = common.slurm_client(config.load_found(None))
    try:
        told = client.run("scontrol", "show", "job", "-o", job).out
    except SlurmError:
        return 0
    return gpus_asked(told)


def gpus_asked(told: str) -> int:
    """GPUs on each node of a job, out of a line of `scontrol show job -o`."""
    fields = dict(word.partition("=")[::2] for word in told.split())

    def asked(name: str) -> int:
        entries = re.sub(r"\bgres[:/]", "", fields.get(name, ""))
        return sum(parse.node_gpus(entries)[1].values())

    def count(name: str) -> int:
        said = fields.get(name, "").partition("-")[0]
        return max(1, int(said)) if said.isdigit() else 1

    of_job = asked("TresPerJob") or asked("TresPerTask") * count("NumTasks")
    return asked("TresPerNode") or of_job // count("NumNodes")


def _gpus(driver: Path) -> int:
    with suppress(OSError):
        return len(list(driver.iterdir()))
    return 0


def _memory_bytes() -> int:
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemTotal:"))
        return int(line.split()[1]) * 1024
    return 0
