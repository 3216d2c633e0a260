"""Timers of steps on cells; several are asked in turn, the best informed first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sizing.base.errors import DoesNotFit, NoProfile, NoTable
from sizing.base.estimate import Estimate, worst
from sizing.choice.layout import TimedLayout
from sizing.inventory.shapes import GpuShape


class StepTimeModel(Protocol):
    """A source of the time of a step on the GPUs of a shape, with a number of pipeline stages.

    Raises DoesNotFit if it does not fit them, and NoProfile or NoTable if nothing is known of them.
    """

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the best way to run the cell."""
        ...


@dataclass(frozen=True)
class Slowest:
    """A timer for pools in which a job may get one of several types of GPU: all are timed, the slowest counts.

    Raises any error that `timer` raises for one of them: without knowledge of one possible GPU the time is unknown.
    """

    timer: StepTimeModel

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the layout of the slowest, with the peak of the fullest; `low` is that of the fastest."""
        found = [self.timer.time(each, stages) for each in shape.possible]
        slowest = max(found, key=lambda each: each.step_s.value)
        peak = max((each.peak for each in found), key=lambda each: each.high)
        return replace(slowest, shape=shape, step_s=slowest_of([each.step_s for each in found]), peak=peak)


def slowest_of(steps: Sequence[Estimate]) -> Estimate:
    """Return the time of a step that may run on any of several types of GPU, from its time on each."""
    return Estimate(
        max(each.value for each in steps),
        min(each.low for each in steps),
        max(each.high for each in steps),
        worst(*(each.origin for each in steps)),
    )


class TimerChain:
    """Timers by rank. It remembers why the first did not know, one reason per type of GPU and kind of error."""

    def __init__(self, timers: Sequence[StepTimeModel]) -> None:
        self._timers = timers
        self.unknown: dict[tuple[str, type[Exception]], str] = {}

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the answer of the first timer that knows; raise the last one's error if none does."""
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
