"""The node on which a command is profiled: its CPUs, memory and GPUs, from Slurm in an allocation, else the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sizing.base.errors import UsageError
from sizing.sbatch.cpu import NodeResources
from slurm_plugin import nodeset
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.read import parse

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_MEMINFO = Path("/proc/meminfo")


def gpus_used(slurm: Callable[[], SlurmClient], environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA) -> int:
    """Return the number of GPUs that a command uses: those of the allocation, else CUDA_VISIBLE_DEVICES.

    Raises UsageError on a machine with GPUs if neither says how many the command may use.
    """
    if job := environ.get("SLURM_JOB_ID", ""):
        count = environ.get("SLURM_GPUS_ON_NODE", "").rpartition(":")[2]
        return int(count) if count.isascii() and count.isdigit() else _gpus_of_job(job, slurm())
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([word for word in named.split(",") if word.strip() not in ("", "-1", "NoDevFiles")])
    if there := _gpus(driver):
        raise UsageError(f"this machine has {there} GPU{'s'[: there - 1]}: say by --gpus how many the command uses")
    return 0


def here(
    slurm: Callable[[], SlurmClient], environ: Mapping[str, str] = os.environ, driver: Path = _NVIDIA
) -> NodeResources | None:
    """Return the profiled node: the allocation's first or this one; None if nothing is known about it."""
    if "SLURM_JOB_ID" in environ:
        with suppress(SlurmError):  # also if the node list in the environment is malformed
            listed = nodeset.expand(environ.get("SLURM_JOB_NODELIST", ""))
            name = environ.get("SLURMD_NODENAME") or (listed[0] if listed else "")
            mine = slurm().nodes().get(name)
            return None if mine is None else NodeResources(mine.cpus, mine.memory_bytes, sum(mine.gpus.values()))
        return None
    cpus, memory = os.cpu_count(), _memory_bytes()
    return NodeResources(cpus, memory, _gpus(driver)) if cpus and memory else None


def _gpus_of_job(job: str, client: SlurmClient) -> int:
    """Return the GPUs per node that a job asked for, 0 if Slurm does not answer.

    The environment that salloc sets does not contain this.
    """
    try:
        output = client.run("scontrol", "show", "job", "-o", job).out
    except SlurmError:
        return 0
    return gpus_asked(output)


def gpus_asked(output: str) -> int:
    """Return a job's GPUs per node, from a line of `scontrol show job -o`."""
    fields = dict(word.partition("=")[::2] for word in output.split())

    def asked(name: str) -> int:
        entries = re.sub(r"\bgres[:/]", "", fields.get(name, ""))
        return sum(parse.node_gpus(entries)[1].values())

    def count(name: str) -> int:
        digits = fields.get(name, "").partition("-")[0]
        return max(1, int(digits)) if digits.isdigit() else 1

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
