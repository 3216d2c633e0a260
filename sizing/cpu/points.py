"""One point of a profile: the user's own command run on so many CPUs for some seconds, and how fast it trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sizing.errors import SizingError, UsageError
from sizing.estimate import Estimate

Unit = Literal["samples/s", "steps/s", "as printed"]
Phase = Literal["starting", "warming up", "measuring", "ending"]
Kind = Literal["srun", "cgroup", "affinity"]
"""What confines the command: a step of Slurm, a cpuset of a cgroup, or the processes' CPU affinity."""


class Unmeasured(SizingError):
    """A point has no throughput: the command died, ended too soon, or printed none; `output` is the file of it."""

    def __init__(self, said: str, output: str = "") -> None:
        super().__init__(said)
        self.output = output


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a point is measured.

    From the first sign of progress, `warmup_s` are left out; then the point is over after `least_steps` steps and
    `least_s` seconds, or after `enough_s` seconds with fewer steps. All of it, the start included, takes `timeout_s` at
    most. Raises UsageError for times that cannot be.
    """

    timeout_s: float = 120.0
    warmup_s: float = 5.0
    least_steps: int = 50
    least_s: float = 5.0
    enough_s: float = 20.0

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_s <= 86_400:
            raise UsageError(f"--timeout {self.timeout_s:g}: seconds, from 1 to 86400")

    @property
    def usual_s(self) -> float:
        """What a point takes beside the command's start, where its steps are no slower than usual."""
        return min(self.warmup_s + self.least_s, self.timeout_s)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a point is: seconds since its start, of `of_s` at most, steps seen and the rate so far (None: none)."""

    cpus: int
    phase: Phase
    elapsed_s: float
    of_s: float
    steps: int = 0
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class PointResult:
    """What a command did on `cpus` CPUs, all told.

    `rate` is the median of `blocks`, rates of pieces of the steady time, with its 95 % interval. `process_bytes` is the
    most memory that the command's processes had together and that cannot be dropped (0: not known), `read_bytes_s` what
    they read a second, from memory or disk (0: not known), `cpu_s` the CPU time used in a second.
    """

    cpus: int
    rate: Estimate
    unit: Unit
    blocks: tuple[float, ...]
    steps: int
    steady_s: float
    took_s: float
    start_s: float
    kind: Kind
    made_s: float
    process_bytes: int = 0
    read_bytes_s: float = 0.0
    cpu_s: float = 0.0
    notes: tuple[str, ...] = ()


Heard = Callable[[Progress], None]


class Runner:
    """Runs a command on CPUs that it is confined to; nothing that it started is left when `measure` returns.

    To be used in the main thread of a process: the regular expression is bounded by a timer there.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        regex: str | None = None,
        gpus: int = 0,
        limits: Limits | None = None,
        how: Kind | Literal["auto"] = "auto",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Raises UsageError for a command that is none, or a `regex` without a group step, samples or rate."""
        raise NotImplementedError

    def measure(self, cpus: int, heard: Heard | None = None) -> PointResult:
        """The throughput on so many CPUs; raises Unmeasured, and UsageError for more CPUs than there are."""
        raise NotImplementedError
