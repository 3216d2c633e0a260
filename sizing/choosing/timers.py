"""Who knows how long a step takes on a cell; several are asked one after another, the best informed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sizing.cells.cell import Split
from sizing.choosing.shapes import Shape
from sizing.errors import DoesNotFit, NoProfile, NoTable
from sizing.estimate import Estimate, worst


@dataclass(frozen=True, slots=True)
class Timed:
    """The best way to run a cell that is known: `splits` of its stages, and what comes of them.

    `step_s` is a step of the whole global batch, `peak` the bytes of one GPU of the fullest stage, its `high` with the
    guard band. A replica's batch is cut into `micro_batches`. So many `runs` on just these GPUs say so, in which
    processes took `host_bytes` of a node at most.
    """

    step_s: Estimate
    peak: Estimate
    splits: tuple[Split, ...]
    micro_batches: int
    runs: int = 0
    host_bytes: int | None = None


class Timer(Protocol):
    """Tells how long a step takes on the GPUs of a shape, with so many pipeline stages.

    Raises DoesNotFit where it does not fit them, and NoProfile or NoTable where nothing is known of them.
    """

    def time(self, shape: Shape, stages: int) -> Timed:
        """The best way to run the cell."""
        ...


@dataclass(frozen=True)
class Slowest:
    """A timer for pools in which a job may get one type of GPU or another: all of them are timed, the slowest counts.

    Raises what `timer` raises of any of them: of a step that may run on a GPU nothing is known of, nothing is known.
    """

    timer: Timer

    def time(self, shape: Shape, stages: int) -> Timed:
        """The plan of the slowest, with the peak of the fullest; `low` is of the quickest, which it may be."""
        found = [self.timer.time(each, stages) for each in shape.possible]
        slowest = max(found, key=lambda each: each.step_s.value)
        step = slowest_of([each.step_s for each in found])
        return replace(slowest, step_s=step, peak=max((each.peak for each in found), key=lambda each: each.high))


def slowest_of(steps: Sequence[Estimate]) -> Estimate:
    """How long a step takes that may run on several types of GPU, of which it takes so long on each."""
    return Estimate(
        max(each.value for each in steps),
        min(each.low for each in steps),
        max(each.high for each in steps),
        worst(*(each.origin for each in steps)),
    )


class FirstThatKnows:
    """Timers by rank. Why the first did not know is remembered, once a type of GPU for profiles and once for tables."""

    def __init__(self, timers: Sequence[Timer]) -> None:
        self._timers = timers
        self.unknown: dict[tuple[str, type[Exception]], str] = {}

    def time(self, shape: Shape, stages: int) -> Timed:
        """What the first timer says that knows; raises the last one's error where none does."""
        for timer in self._timers[:-1]:
            try:
                return timer.time(shape, stages)
            except (NoProfile, NoTable) as error:
                kind = shape.pool.gpu.name
                self.unknown.setdefault((kind, type(error)), f"{shape.gpus} x {kind}: {error}")
        try:
            return self._timers[-1].time(shape, stages)
        except (NoProfile, NoTable) as error:
            raise DoesNotFit(str(error)) from None
