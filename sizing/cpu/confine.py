"""What there is to confine a command with: a step of Slurm's, a cpuset of a cgroup, or CPU affinity.

In each the guard (sizing/cpu/guard.py) is the command's parent: it narrows the CPUs down itself where a step was not
confined by Slurm, and says how many it has in the end. Data-loader workers inherit either.
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

from sizing.cpu import guard
from sizing.errors import SizingError, UsageError
from slurm_plugin.env import scrubbed

Kind = Literal["srun", "cgroup", "affinity"]
How = Literal["auto", "srun", "cgroup", "affinity"]

_ANSWER_S = 60.0  # a step of a busy controller; the allocation is there already
_NESTED = ("srun", "sbatch", "salloc", "mpirun", "mpiexec", "docker", "ssh", "systemd-run")
# Of the caller's own step, or a size that ours replaces.
_NOT_HANDED_ON = re.compile("SLURM_(STEP|CPU_BIND|TRES_PER_TASK|CPUS_PER_TASK|TASK|LOCALID|PROCID|NODEID|GTIDS)")


@dataclass(frozen=True, slots=True)
class Host:
    """Where commands run: its name, the CPUs at hand there, and what CPUs, GPUs and memory it has."""

    name: str
    cpus: int
    cpu_model: str
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Confinement:
    """How commands are confined on `host`; in an allocation `job` is its id and `node` the one of its nodes."""

    kind: Kind
    host: Host
    job: str = ""
    node: str = ""
    gpus: int = 0

    def argv(self, command: Sequence[str], cpus: int, grace_s: float, environ: Mapping[str, str]) -> list[str]:
        """The guard's command line for a command on so many CPUs."""
        request: dict[str, Any] = {"command": list(command), "cpus": cpus, "grace_s": grace_s}
        request["cgroup"] = self.kind == "cgroup"
        if self.kind != "srun":
            return _guard(request)
        request["relay"] = True
        lost = {key for key in environ if key.startswith("SLURM") and key not in scrubbed(environ)}
        request["env"] = {key: environ[key] for key in sorted(lost) if not _NOT_HANDED_ON.match(key)}
        return [*_step(self.job, self.node, cpus, self.gpus), *_guard(request)]

    def environ(self, environ: Mapping[str, str], cpus: int) -> dict[str, str]:
        """The environment for that, in which scripts read how many CPUs they have as in a job of Slurm's.

        Threads of OpenMP follow the CPUs by themselves; OMP_NUM_THREADS is changed only where it was what Slurm gave.
        """
        found = dict(scrubbed(environ)) if self.kind == "srun" else dict(environ)
        if (given := environ.get("SLURM_CPUS_PER_TASK")) and environ.get("OMP_NUM_THREADS") == given:
            found["OMP_NUM_THREADS"] = str(cpus)
        if self.kind != "srun":
            found["SLURM_CPUS_PER_TASK"] = str(cpus)
        return found | {"PYTHONUNBUFFERED": "1"}


def confinement(how: How, environ: Mapping[str, str], gpus: int = 0) -> Confinement:
    """The best there is, or the one asked for.

    Raises UsageError where that is not there, SizingError where Slurm does not start a step in the allocation.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if how == "srun" and not job:
        raise UsageError("no allocation to run steps in: salloc or sbatch first, or leave --confine srun out")
    if job and how in ("auto", "srun"):
        if shutil.which("srun", path=environ.get("PATH")) is None:
            raise UsageError(f"srun was not found, which starts steps in job {job}: load Slurm, or --confine affinity")
        return _in_allocation(job, environ, gpus)
    said = guard.describe()
    if how == "cgroup" and not said["cgroup"]:
        raise UsageError("this user may make no cpuset of cgroup v2 here: --confine affinity does without")
    kind: Kind = "cgroup" if how == "cgroup" or (how == "auto" and said["cgroup"]) else "affinity"
    host = _host(said)
    if job:  # where Slurm does not confine jobs to their CPUs, all of the node's are at hand, and not ours
        host = replace(host, cpus=min(host.cpus, _given(environ) or host.cpus))
    return Confinement(kind, host, gpus=gpus)


def refuse_command(command: Sequence[str]) -> None:
    """Raise UsageError for a command that cannot be confined, or is none."""
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
    """Steps of this job, on the node where we are or else its first."""
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
    """How many CPUs Slurm says that a job has on its node; of several nodes the first. 0 where it does not say."""
    counts = re.match("[0-9]+", environ.get("SLURM_CPUS_ON_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return int(counts.group()) if counts else 0


def _step(job: str, node: str, cpus: int, gpus: int) -> list[str]:
    """A step on one node with so many CPUs; memory and GPUs are the job's own, beside whatever else runs in it."""
    options = [f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", "--exact", "--overlap"]
    options += ["--cpu-bind=cores", "--mem=0", "--mpi=none", "--kill-on-bad-exit=1", "--job-name=bft-cpu", "--quiet"]
    options += [f"--nodelist={node}"] if node else []
    options += [f"--gres=gpu:{gpus}"] if gpus else []
    return ["srun", *options]


def _guard(request: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-I", os.path.abspath(guard.__file__), json.dumps(dict(request))]


def _host(said: Mapping[str, Any]) -> Host:
    gpus = tuple(map(str, said["gpus"]))
    return Host(str(said["host"]), int(said["cpus"]), str(said["cpu_model"]), gpus, int(said["memory_bytes"]))


def message_of(text: str) -> dict[str, Any] | None:
    """What the guard says in a text that may have words of srun's beside it; None where it says nothing."""
    for line in text.split("\n"):
        _, mark, body = line.partition(guard.MARK)
        if mark:
            try:
                said = json.loads(body)
            except ValueError:
                continue
            if isinstance(said, dict):
                return said
    return None
