"""The means to confine a command to CPUs: a Slurm step, a cpuset of a cgroup, or CPU affinity.

In each the guard (sizing/cpu/runs/supervisor.py) is the command's parent: it narrows the CPUs itself if Slurm did not
confine the step, and reports the final CPUs. Data-loader workers inherit them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sizing.base.errors import SizingError, UsageError
from sizing.cpu.runs import supervisor
from slurm_plugin.clients.env import scrubbed

Kind = Literal["srun", "cgroup", "affinity"]
How = Literal["auto", "srun", "cgroup", "affinity"]

_ANSWER_S = 60.0  # for a step of a busy controller; the allocation exists already
_NESTED = ("srun", "sbatch", "salloc", "mpirun", "mpiexec", "docker", "ssh", "systemd-run")
# Variables of the caller's own step, or a size that ours replaces.
_NOT_HANDED_ON = re.compile("SLURM_(STEP|CPU_BIND|TRES_PER_TASK|CPUS_PER_TASK|TASK|LOCALID|PROCID|NODEID|GTIDS)")


@dataclass(frozen=True, slots=True)
class ProfilingHost:
    """The place where commands run: its name, the usable CPUs, and its hardware."""

    name: str
    cpus: int
    cpu_model: str
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Confinement:
    """The way commands are confined on `host`; in an allocation `job` is its id and `node` the chosen node."""

    kind: Kind
    host: ProfilingHost
    job: str = ""
    node: str = ""
    gpus: int = 0

    def argv(self, command: Sequence[str], cpus: int, grace_s: float, environ: Mapping[str, str]) -> list[str]:
        """Return the guard's command line for a command on `cpus` CPUs."""
        request: dict[str, Any] = {"command": list(command), "cpus": cpus, "grace_s": grace_s}
        request["cgroup"] = self.kind == "cgroup"
        if self.kind != "srun":
            return _guard(request)
        request["relay"] = True
        lost = {key for key in environ if key.startswith("SLURM") and key not in scrubbed(environ)}
        request["env"] = {key: environ[key] for key in sorted(lost) if not _NOT_HANDED_ON.match(key)}
        return [*_step(self.job, self.node, cpus, self.gpus), *_guard(request)]

    def environ(self, environ: Mapping[str, str], cpus: int) -> dict[str, str]:
        """Return the environment for that; scripts read their number of CPUs in it as in a Slurm job.

        OpenMP's threads follow the CPUs by themselves; OMP_NUM_THREADS is changed only if it was the number Slurm gave.
        """
        found = dict(scrubbed(environ)) if self.kind == "srun" else dict(environ)
        if (given := environ.get("SLURM_CPUS_PER_TASK")) and environ.get("OMP_NUM_THREADS") == given:
            found["OMP_NUM_THREADS"] = str(cpus)
        if self.kind != "srun":
            found["SLURM_CPUS_PER_TASK"] = str(cpus)
        return found | {"PYTHONUNBUFFERED": "1"}


def confinement(how: How, environ: Mapping[str, str], gpus: int = 0) -> Confinement:
    """Return the best available confinement, or the one asked for.

    Raises UsageError if that is not available, SizingError if Slurm does not start a step in the allocation.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if how == "srun" and not job:
        raise UsageError("no allocation to run steps in: salloc or sbatch first, or leave --confine srun out")
    if job and how in ("auto", "srun"):
        if shutil.which("srun", path=environ.get("PATH")) is None:
            raise UsageError(f"srun was not found, which starts steps in job {job}: load Slurm, or --confine affinity")
        return _in_allocation(job, environ, gpus)
    said = supervisor.describe()
    if how == "cgroup" and not said["cgroup"]:
        raise UsageError("this user may make no cpuset of cgroup v2 here: --confine affinity does without")
    kind: Kind = "cgroup" if how == "cgroup" or (how == "auto" and said["cgroup"]) else "affinity"
    host = _host(said)
    if job:  # if Slurm does not confine jobs to their CPUs, we see all of the node's, not just ours
        host = replace(host, cpus=min(host.cpus, _given(environ) or host.cpus))
    return Confinement(kind, host, gpus=gpus)


def refuse_command(command: Sequence[str]) -> None:
    """Raise UsageError for a command that is empty or cannot be confined."""
    if not command or not command[0]:
        raise UsageError("name the command to profile behind --, for example -- python train.py")
    if (name := Path(command[0]).name) in _NESTED:
        raise UsageError(
            f"{name} would start the training where its CPUs are not confined: give the command without it "
            "(torchrun --nproc-per-node=N for several GPUs)"
        )
    if any("\0" in word for word in command):
        raise UsageError("a command has no NUL characters")


def _in_allocation(job: str, environ: Mapping[str, str], gpus: int) -> Confinement:
    """Return the confinement in steps of this job, on our own node or else the job's first."""
    node = environ.get("SLURMD_NODENAME", "")
    cpus = _given(environ) or 1
    argv = [*_step(job, node, cpus, gpus), *_guard({"describe": True})]
    try:
        ran = subprocess.run(
            argv,
            env=scrubbed(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"srun cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        said = f"Slurm started no step in job {job} within {_ANSWER_S:g} s: try again, or look at squeue -s"
        raise SizingError(said) from None
    told = message_of(ran.stderr)
    if told is None:
        words = [line for line in ran.stderr.strip().splitlines() if line.strip()]
        why = words[-1][:200] if words else f"srun ended with {ran.returncode}"
        if gpus and "generic resource" in why:
            raise UsageError(f"--gpus {gpus}: job {job} has not so many on a node: say how many, or allocate more")
        raise SizingError(f"no step could be started in job {job}: {why}; --confine affinity does without steps")
    host = _host(told)
    return Confinement("srun", replace(host, cpus=min(cpus, host.cpus)), job, node, gpus)


def _given(environ: Mapping[str, str]) -> int:
    """Return the job's number of CPUs on its node by Slurm (the first of several nodes), 0 if it does not say."""
    counts = re.match("[0-9]+", environ.get("SLURM_CPUS_ON_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return int(counts.group()) if counts else 0


def _step(job: str, node: str, cpus: int, gpus: int) -> list[str]:
    """Return the srun command of a step on one node with `cpus` CPUs; it shares memory and GPUs with the whole job."""
    options = [f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", "--exact", "--overlap"]
    options += ["--cpu-bind=cores", "--mem=0", "--mpi=none", "--kill-on-bad-exit=1", "--job-name=bft-cpu", "--quiet"]
    options += [f"--nodelist={node}"] if node else []
    options += [f"--gres=gpu:{gpus}"] if gpus else []
    return ["srun", *options]


def _guard(request: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-I", os.path.abspath(supervisor.__file__), json.dumps(dict(request))]


def _host(said: Mapping[str, Any]) -> ProfilingHost:
    gpus = tuple(map(str, said["gpus"]))
    return ProfilingHost(str(said["host"]), int(said["cpus"]), str(said["cpu_model"]), gpus, int(said["memory_bytes"]))


def message_of(text: str) -> dict[str, Any] | None:
    """Return the guard's message in a text that may also have output of srun; None if there is none."""
    for line in text.split("\n"):
        _, mark, body = line.partition(supervisor.MARK)
        if mark:
            try:
                said = json.loads(body)
            except ValueError:
                continue
            if isinstance(said, dict):
                return said
    return None
