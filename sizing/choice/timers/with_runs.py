"""A timer by jobs that have run on exactly these GPUs, with another timer as the fallback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.base.errors import DoesNotFit
from sizing.base.parallel import Parallel
from sizing.choice.layout import Layout, TimedLayout
from sizing.choice.ran import used
from sizing.choice.sources import Traces
from sizing.choice.timers.timers import StepTimeModel
from sizing.files.past_runs import Ran
from sizing.inventory.shapes import GpuShape


@dataclass(frozen=True)
class WithRuns:
    """A timer by earlier runs; `runs` are of exactly the step of `traces`."""

    timer: StepTimeModel
    runs: Sequence[Ran]
    traces: Traces
    global_batch: int

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the fastest split that ran, or `timer`'s if that is another and faster.

        Raises `timer`'s errors if nothing ran.
        """
        ran = self._ran(shape) if stages == 1 and not shape.pool.mixed else {}
        found = [self._used(runs, Layout(shape, (parallel,), self.global_batch)) for parallel, runs in ran.items()]
        try:
            timed = self.timer.time(shape, stages)
            if timed.parallel not in ran:
                found.append(timed)
        except DoesNotFit:
            if not found:
                raise
        return min(found, key=lambda each: each.step_s.value)

    def _ran(self, shape: GpuShape) -> dict[Parallel, list[Ran]]:
        """Return runs on these GPUs by their split, without those that shared a replica's state."""
        found: dict[Parallel, list[Ran]] = {}
        for each in self.runs:
            on = (each.gpu_type, each.gpus, each.nodes) == (shape.pool.gpu.name, shape.gpus, shape.nodes)
            if on and each.fsdp == 1 and each.batch * each.dp == self.global_batch:
                found.setdefault(each.point.parallel, []).append(each)
        return found

    def _used(self, runs: Sequence[Ran], layout: Layout) -> TimedLayout:
        peak = self.traces.peak(layout.parallel, layout.batch)
        assert peak is not None  # it was traced to identify these runs
        return used(runs, layout, peak)
