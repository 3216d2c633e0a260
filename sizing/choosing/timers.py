"""Who knows how long a step takes on a cell; several are asked one after another, the best informed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sizing.cells.cell import Split
from sizing.choosing.shapes import Shape
from sizing.errors import DoesNotFit, NoProfile, NoTable
from sizing.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Timed:
    """The best way to run a cell that is known: `splits` of its stages, and what comes of them.

    `step_s` is a step of the whole global batch, `peak` the bytes of one GPU of the fullest stage, its `high` with the
    guard band. A replica's batch is cut into `micro_batches`.
    """

    step_s: Estimate
    peak: Estimate
    splits: tuple[Split, ...]
    micro_batches: int


class Timer(Protocol):
    """Tells how long a step takes on the GPUs of a shape, with so many pipeline stages.

    Raises DoesNotFit where it does not fit them, and NoProfile or NoTable where nothing is known of them.
    """

    def time(self, shape: Shape, stages: int) -> Timed:
        """The best way to run the cell."""
        ...


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
