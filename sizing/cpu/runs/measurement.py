"""One point of a profile: the user's own command run on a number of CPUs for some seconds, and its training speed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sizing.base.errors import UsageError
from sizing.cpu.patterns import Pattern
from sizing.cpu.runs import affinity
from sizing.cpu.runs.affinity import How
from sizing.cpu.runs.process import CommandOutput, Running
from sizing.cpu.runs.steady_state import (
    Heard,
    ObservationLimits,
    PointObserver,
    PointProgress,
    PointResult,
    Unit,
    Unmeasured,
)

__all__ = ["Heard", "ObservationLimits", "PointProgress", "PointResult", "Runner", "Unit", "Unmeasured", "too_few"]

_GRACE_S = 3.0
_LOOK_S = 0.2


class Runner:
    """Runs a command confined to CPUs; no process that it started is left when `measure` returns.

    Use it in the main thread of a process, in which a timer bounds the regular expression.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        regex: str | None = None,
        gpus: int = 0,
        limits: ObservationLimits | None = None,
        how: How = "auto",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Find out where and how the command is run; it is not started yet.

        Raises UsageError for an invalid command, or a `regex` without a group step, samples or rate, SizingError if
        Slurm starts no step.
        """
        affinity.refuse_command(command)
        self.command = tuple(command)
        self.limits = limits or ObservationLimits()
        self._pattern = Pattern(regex) if regex is not None else None
        self._environ = dict(os.environ if environ is None else environ)
        self.confinement = affinity.confinement(how, self._environ, gpus)

    @property
    def available(self) -> int:
        """The number of CPUs that a point may have."""
        return self.confinement.host.cpus

    def measure(self, cpus: int, heard: Heard | None = None, most_s: float = math.inf) -> PointResult:
        """Return the throughput on `cpus` CPUs, within `most_s` if that is less than the limit for a point.

        Raises Unmeasured, and UsageError for more CPUs than there are.
        """
        if not 1 <= cpus <= self.available:
            raise UsageError(too_few(cpus, self.confinement))
        if self._pattern is not None:
            self._pattern = Pattern(self._pattern.text)
        argv = self.confinement.argv(self.command, cpus, _GRACE_S, self._environ)
        output = CommandOutput(Path.cwd() if self.confinement.kind == "srun" else None)
        keep = False
        try:
            limits = replace(self.limits, timeout_s=max(1.0, min(most_s, self.limits.timeout_s)))
            watch = PointObserver(cpus, limits, self._pattern, self.confinement.kind, self.command, output.path)
            running = Running(argv, self.confinement.environ(self._environ, cpus), output)
            try:
                looked_s = time.monotonic()
                while not running.over:
                    printed, said = running.events(_LOOK_S)
                    watch.take(printed, said, now_s := time.monotonic())
                    if now_s - looked_s < _LOOK_S:
                        continue
                    looked_s = now_s
                    if watch.enough(now_s):
                        break
                    if heard is not None:
                        heard(watch.progress(now_s))
            finally:
                last = running.end()
            # Take the last message of a run that we end: for a short run it may be the only one that saw it at work.
            if last:
                watch.take(b"", [each for each in last if each.get("op") == "used"], looked_s)
            return watch.result(list(running.words), running.left)
        except Unmeasured as error:
            keep = output.path in str(error)  # otherwise the user does not know of the file
            error.output = output.path if keep else ""
            raise
        finally:
            output.close(keep=keep)


def too_few(cpus: int, where: affinity.Confinement) -> str:
    """Return the message for a request of more CPUs than there are."""
    there = where.host.cpus
    if where.kind == "srun":
        return (
            f"{cpus} CPUs: job {where.job} has {there} on a node: --cpus up to {there}, or an allocation with more "
            "(salloc --cpus-per-task)"
        )
    return (
        f"{cpus} CPUs: this user has {there} on {where.host.name}: --cpus up to {there}, or run it where there are more"
    )
