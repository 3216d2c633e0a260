"""A timer by jobs that have run on exactly these GPUs, with another timer as the fallback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.base.errors import DoesNotFit
from sizing.choice.ran import Ran, used
from sizing.choice.sources import Traces
from sizing.choice.timers.timers import StepTime, StepTimeModel
from sizing.inventory.shapes import GpuShape


@dataclass(frozen=True)
class WithRuns:
    """A timer by earlier runs; `runs` are of exactly the step of `traces`."""

    timer: StepTimeModel
    runs: Sequence[Ran]
    traces: Traces
    global_batch: int

    def time(self, shape: GpuShape, stages: int) -> StepTime:
        """Return the fastest split that ran, or `timer`'s if that is another and faster.

        Raises `timer`'s errors if nothing ran.
        """
        ran = self._ran(shape) if stages == 1 and not shape.pool.mixed else {}
        found = [self._used(runs, shape) for runs in ran.values()]
        try:
            timed = self.timer.time(shape, stages)
            if (timed.splits[0].dp, timed.splits[0].tp) not in ran:
                found.append(timed)
        except DoesNotFit:
            if not found:
                raise
        return min(found, key=lambda each: each.step_s.value)

    def _ran(self, shape: GpuShape) -> dict[tuple[int, int], list[Ran]]:
        """Return runs on these GPUs by their split, without those that shared a replica's state."""
        found: dict[tuple[int, int], list[Ran]] = {}
        for each in self.runs:
            on = (each.gpu_type, each.gpus, each.nodes) == (shape.pool.gpu.name, shape.gpus, shape.nodes)
            if on and each.fsdp == 1 and each.batch * each.dp == self.global_batch:
                found.setdefault((each.dp, each.tp), []).append(each)
        return found

    def _used(self, runs: Sequence[Ran], shape: GpuShape) -> StepTime:
        point = runs[0].point
        peak = self.traces.peak(point.parallel, point.batch)
        assert peak is not None  # it was traced to identify these runs
        told = used(runs, peak, shape.pool.gpu_bytes)
        return StepTime(told.step_s, told.peak, (point.parallel,), 1, told.runs, told.host_bytes)
