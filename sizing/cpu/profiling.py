"""The profile of a command: points chosen by the search, run or found in the cache, within a budget of seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sizing.cpu.confine import How, Kind
from sizing.cpu.matrix import Matrix
from sizing.cpu.points import Limits, PointResult, Progress


@dataclass(frozen=True, slots=True)
class Ask:
    """What is profiled: a command with the CPUs to choose from (all told; none: all that there are).

    `gpus` is how many the command uses, 0 for none. Without `regex` the progress API is listened to. Without
    `dataset_bytes` and `data` (files and folders that it reads) there is no memory axis. `again` asks for points that
    the cache has.
    """

    command: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    gpus: int = 0
    regex: str | None = None
    budget_s: float = 600.0
    limits: Limits = field(default_factory=Limits)
    dataset_bytes: float | None = None
    data: tuple[Path, ...] = ()
    how: How = "auto"
    again: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What a profile will take: so many points at most, of about so many seconds each, `known` are in the cache."""

    points: int
    point_s: float
    known: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What came of it: points in the order they were tried, and the matrix for each GPU.

    `ages_s` has the age of those that the cache knew. `left_out` are CPUs that the search wanted and the budget did not
    allow. `memory_modelled` says whether the matrix has a memory axis; else its one column is `process_bytes`.
    `available` is how many CPUs the host or the allocation has.
    """

    ask: Ask
    points: Mapping[int, PointResult]
    matrix: Matrix
    host: str
    kind: Kind
    available: int
    process_bytes: int
    memory_modelled: bool
    dataset_bytes: float | None = None
    disk_bytes_s: float | None = None
    memory_bytes_s: float | None = None
    ages_s: Mapping[int, float] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    said: tuple[str, ...] = ()
    took_s: float = 0.0


def cost(ask: Ask) -> Cost:
    """What `profile` would take, before it starts; raises UsageError for what cannot be asked."""
    raise NotImplementedError


def profile(
    ask: Ask,
    *,
    heard: Callable[[Progress], None] | None = None,
    done: Callable[[PointResult], None] | None = None,
) -> Profile:
    """Run the points; `heard` hears of the one that runs a few times a second, `done` of each that is there.

    Every point is written to the cache as soon as it is measured. Ctrl-C ends the command and passes on. Raises
    UsageError for what cannot be asked, Unmeasured where no throughput was found.
    """
    raise NotImplementedError
