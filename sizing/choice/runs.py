"""A whole run on a cell: its duration, its GPU-hours, its end, and the lines that ask Slurm for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sizing.base.errors import DoesNotFit
from sizing.base.estimate import Estimate
from sizing.choice import limits
from sizing.choice.layout import TimedLayout
from sizing.choice.timers.timers import StepTimeModel
from sizing.inventory.pools import GpuPool
from sizing.inventory.shapes import GpuShape, shapes, stage_counts
from sizing.sbatch.lines import SbatchLine, written

START_UP_S = Estimate(120.0, 30.0, 600.0, "assumed")
"""Time until the first step: prolog, containers, imports, reading a checkpoint; not measured."""


SIMPLER = 0.1
"""The share by which a pipeline must be faster than fewer stages if times are assumed: only its bubble is certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun(TimedLayout):
    """A whole job. `run_s` covers all its steps and the start-up.

    `start_s` is when Slurm would start it, in unix seconds, and `said` Slurm's words on that, or on its refusal if
    `refused`. None and "" if Slurm was not asked.
    """

    run_s: Estimate
    start_s: float | None = None
    said: str = ""
    refused: bool = False

    @classmethod
    def of(cls, timed: TimedLayout, run_s: Estimate) -> JobRun:
        """Return the run of a layout that takes so long."""
        return cls(**{field.name: getattr(timed, field.name) for field in fields(TimedLayout)}, run_s=run_s)

    @property
    def gpu_hours(self) -> Estimate:
        """GPU-hours of all GPUs that others cannot have meanwhile."""
        hours = self.shape.paid / 3600
        return Estimate(self.run_s.value * hours, self.run_s.low * hours, self.run_s.high * hours, self.run_s.origin)

    @property
    def limit_s(self) -> float:
        """The value of --time: the longest that it may take, as far as the partition allows."""
        return limits.limit_s(self.run_s.high, self.shape.pool.max_time_s)

    @property
    def may_be_cut(self) -> bool:
        """Whether the partition's limit would end it before its last step if it runs as slowly as it may."""
        return self.limit_s < self.run_s.high

    def ends_s(self, now_s: float) -> Estimate:
        """Return the end of its last step, in unix seconds; as if it started now if Slurm was not asked."""
        start_s = now_s if self.start_s is None else max(now_s, self.start_s)
        run = self.run_s
        return Estimate(start_s + run.value, start_s + run.low, start_s + run.high, run.origin)

    def lines(self, tasks_per_node: int | None = 1, launcher: str = "torchrun") -> tuple[SbatchLine, ...]:
        """Return the lines that ask Slurm for it; a launcher such as torchrun is one task per node."""
        lines = written(self.shape, self.spread, self.peak, self.host_bytes, tasks_per_node, launcher)
        why = (
            f"{limits.words(self.run_s.value)} expected, {limits.words(self.run_s.high)} at most ({self.run_s.origin})"
        )
        if self.may_be_cut:
            why = f"all that the partition allows; {why}"
        return (*lines, SbatchLine("time", limits.slurm(self.limit_s), why))

    def to_json(self, now_s: float) -> dict[str, Any]:
        """Return the form of `bft size choose --json`; times in seconds, moments in unix seconds."""
        ends = self.ends_s(now_s)
        return {
            "partition": self.partition,
            "gpu_type": self.gpu_type,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "stages": self.stages,
            "dp": [split.dp for split in self.splits],
            "tp": [split.tp for split in self.splits],
            "micro_batches": self.micro_batches,
            "peak_bytes": int(self.peak.value),
            "high_bytes": int(self.peak.high),
            "peak_origin": self.peak.origin,
            "gpu_bytes": self.gpu_bytes,
            "step": _json(self.step_s),
            "ran": self.runs,
            "run": _json(self.run_s),
            "time_limit_s": self.limit_s,
            "gpu_hours": _json(self.gpu_hours),
            "start_s": self.start_s,
            "slurm": self.said,
            "refused": self.refused,
            "ends": None if self.refused else _json(ends),
            "sbatch": [line.text for line in self.lines()],
            "why": [line.why for line in self.lines()],
        }


@dataclass(frozen=True, slots=True)
class Rejected:
    """A cell that is ruled out, and why.

    `run_s` is its run time, None if it fits no GPU; `times` is then the memory it needs over that of a GPU, infinity if
    it is ruled out for another reason.
    """

    shape: GpuShape
    stages: int
    why: str
    run_s: Estimate | None = None
    times: float = float("inf")

    def to_json(self) -> dict[str, Any]:
        """Return the form of `bft size choose --json`."""
        return {
            "partition": self.shape.pool.partition,
            "gpu_type": self.shape.pool.gpu.name,
            "gpus": self.shape.gpus,
            "nodes": self.shape.nodes,
            "stages": self.stages,
            "why": self.why,
        }


def exactly(start_up_s: float) -> Estimate:
    """Return a start-up that somebody says takes so long."""
    return Estimate(start_up_s, start_up_s, start_up_s, "assumed")


def survey(
    pools: Iterable[GpuPool],
    timer: StepTimeModel,
    steps: int,
    start_up_s: Estimate = START_UP_S,
    max_gpus: int | None = None,
    max_stages: int | None = None,
) -> tuple[tuple[JobRun, ...], tuple[Rejected, ...]]:
    """Return all cells of the pools: those that can run `steps` steps, the shortest first, and the others."""
    runs: list[JobRun] = []
    out: list[Rejected] = []
    for pool in pools:
        for shape in shapes(pool, max_gpus, cells=True):
            for stages in stage_counts(shape, max_stages):
                try:
                    timed = timer.time(shape, stages)
                except DoesNotFit as error:
                    out.append(Rejected(shape, stages, str(error), times=error.times))
                    continue
                run = JobRun.of(timed, _run_s(timed.step_s, steps, start_up_s))
                if pool.max_time_s is not None and run.run_s.value > pool.max_time_s:
                    out.append(Rejected(shape, stages, limits.too_long(run.run_s, pool.max_time_s), run.run_s))
                else:
                    runs.append(run)
    return tuple(sorted(runs, key=_length)), tuple(out)


def best_of_shapes(runs: Iterable[JobRun]) -> tuple[JobRun, ...]:
    """Return the shortest run of each partition, type and number of GPUs, shortest first: Slurm does not see the rest.

    If times are assumed, a run with more stages must be shorter by a share of `SIMPLER`.
    """
    found: dict[object, JobRun] = {}
    for run in sorted(runs, key=lambda run: run.stages):
        best = found.get(run.shape.request)
        share = SIMPLER if best is not None and "assumed" in (run.run_s.origin, best.run_s.origin) else 0.0
        if best is None or run.step_s.value < best.step_s.value * (1 - share):
            found[run.shape.request] = run
    return tuple(sorted(found.values(), key=_length))


def _run_s(step: Estimate, steps: int, start_up: Estimate) -> Estimate:
    """Return the time of a run with the step's origin.

    An assumed start-up shows in the range, and does not grow with the run.
    """
    value, low, high = (getattr(step, end) * steps + getattr(start_up, end) for end in ("value", "low", "high"))
    return Estimate(value, low, high, step.origin)


def _length(run: JobRun) -> tuple[object, ...]:
    return (run.run_s.value, run.gpu_hours.value, run.nodes, run.gpus, run.partition, run.stages)


def _json(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "origin": estimate.origin}


def nearest(out: Sequence[Rejected]) -> str:
    """Say which of the impossible cells comes nearest to being possible, and why it is not."""
    if not out:
        return "there are none; bft size inventory shows which there are"

    def away(each: Rejected) -> tuple[float, float, int, int]:
        return each.run_s.value if each.run_s else math.inf, each.times, -each.shape.gpus, each.stages

    near = min(out, key=away)
    stages = f" in {near.stages} stages" if near.stages > 1 else ""
    return f"{near.shape.gpus} x {near.shape.pool.gpu.name}{stages} in {near.shape.pool.partition}: {near.why}"
