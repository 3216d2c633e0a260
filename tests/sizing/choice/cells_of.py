"""Small pools, and runs whose times are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sizing.base.errors import DoesNotFit
from sizing.base.estimate import Estimate, Origin
from sizing.base.parallel import Parallel
from sizing.choice.layout import TimedLayout
from sizing.choice.runs import JobRun
from sizing.inventory.pools import GpuPool
from sizing.inventory.shapes import GpuShape
from tests.sizing.plans_of import GIB, gpu, group

NOW_S = 1.8e9
TOO_LARGE = "a GPU would need 90.0 GiB and has 80.0"


def pool(
    name: str = "new", gpus: int = 4, count: int = 4, max_time_s: float | None = None, kind: str = "a100"
) -> GpuPool:
    groups = (group(name, count, kind, gpus),)
    return GpuPool(name, gpu(kind, cost=1.0), groups, 80 * GIB, max_time_s=max_time_s)


def estimate(value: float, origin: Origin = "assumed", spread: float = 2.0) -> Estimate:
    return Estimate(value, value / spread, value * spread, origin)


def timed(step_s: float, shape: GpuShape, stages: int = 1, origin: Origin = "assumed") -> TimedLayout:
    return TimedLayout(
        shape,
        (Parallel(shape.gpus // stages),) * stages,
        64,
        1 if stages == 1 else 4 * stages,
        step_s=estimate(step_s, origin),
        peak=estimate(10 * GIB, "traced", 1.1),
    )


def run(
    run_s: float,
    name: str = "new",
    gpus: int = 4,
    start_in_s: float | None = None,
    origin: Origin = "assumed",
    max_time_s: float | None = None,
) -> JobRun:
    shape = GpuShape(pool(name, max_time_s=max_time_s), max(1, gpus // 4), min(gpus, 4))
    start_s = None if start_in_s is None else NOW_S + start_in_s
    return replace(JobRun.of(timed(1.0, shape, origin=origin), estimate(run_s, origin)), start_s=start_s)


class Table:
    """A Timer by a table: (partition, GPUs, stages) -> seconds of a step; what is not in it does not fit."""

    def __init__(self, steps: Mapping[tuple[str, int, int], float], origin: Origin = "assumed") -> None:
        self.steps, self.origin = steps, origin

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        step_s = self.steps.get((shape.pool.partition, shape.gpus, stages))
        if step_s is None:
            raise DoesNotFit(TOO_LARGE)
        return timed(step_s, shape, stages, self.origin)
