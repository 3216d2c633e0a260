"""The choice of GPUs to train a model on: all spreads over an inventory, ranked by the cost of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeVar

from sizing.base.errors import Untraceable
from sizing.base.estimate import Estimate
from sizing.base.parallel import RankBatch
from sizing.choice.layout import Layout, TimedLayout
from sizing.choice.ran import used
from sizing.choice.sources import Source, Traces, ends
from sizing.files.past_runs import Ran
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace
from sizing.sbatch.lines import SbatchLine, written
from sizing.step_time import datasheet

L = TypeVar("L", bound=Layout)

By = Literal["cost", "time"]
"""The ranking of plans: by GPUs x time x the type's worth, or by time alone."""

MOST_TRACES = 16
"""Most traces of one `bft size fit`: two at a time, a trace takes a few seconds."""

AT_ONCE = 2
"""Traces that run side by side: each takes a core and up to 2 GB."""

Measure = Callable[[Sequence[RankBatch]], Sequence[StepTrace | Untraceable]]
"""A function that traces points, some at once, and returns each trace or the reason there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan(TimedLayout):
    """One way to train a model.

    `cost` is that of a step in the inventory's unit. `sbatch` are the lines that ask Slurm for its GPUs, and `why` has
    the reason for each of them. `start` is Slurm's answer on when it could begin, in its own words, None if it was not
    asked.
    """

    cost: Estimate
    sbatch: tuple[str, ...] = ()
    start: str | None = None
    why: tuple[str, ...] = ()

    def lines(self, tasks_per_node: int | None = None, launcher: str = "") -> tuple[SbatchLine, ...]:
        """Return the lines that ask Slurm for it; `tasks_per_node` and `launcher` are those of the user's script."""
        sizes = [(name, getattr(self.parallel, name)) for name in ("dp", "tp", "fsdp")]
        spread = " x ".join(f"{name} {size}" for name, size in sizes if size > 1 or name == "dp")
        return written(self.shape, spread, self.peak, self.host_bytes, tasks_per_node, launcher)

    def to_json(self) -> dict[str, Any]:
        """Return the form of a plan in `bft size fit --json` and in the files that `bft size place` reads."""
        return {
            "partition": self.partition,
            "gpu_type": self.gpu_type,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "dp": self.parallel.dp,
            "tp": self.parallel.tp,
            "fsdp": self.parallel.fsdp,
            "batch": self.batch,
            "micro_batch": self.micro_batch,
            "peak_bytes": int(self.peak.value),
            "high_bytes": int(self.peak.high),
            "origin": self.peak.origin,
            "gpu_bytes": self.gpu_bytes,
            "fits": self.fits,
            "step_s": self.step_s.value,
            "step_low_s": self.step_s.low,
            "step_high_s": self.step_s.high,
            "step_origin": self.step_s.origin,
            "cost": self.cost.value,
            "ran": self.runs,
            "sbatch": list(self.sbatch),
            "why": list(self.why),
            "start": self.start,
        }


def fit(source: Source, layouts: Iterable[Layout], by: By = "cost") -> tuple[GpuPlan, ...]:
    """Return plans of all layouts for which the source knows the memory, best first, with their #SBATCH lines.

    Plans that fit come first, by cost or time; of equal ones the faster, also at worst, then the one on fewer nodes.
    The others follow by the bytes that a GPU lacks.
    """
    plans = []
    for layout in layouts:
        peak, work = source.peak(layout.parallel, layout.batch), source.work(layout.parallel, layout.batch)
        if peak is not None and work is not None:
            plans.append(_lined(_plan(layout, work, peak, source)))
    return _ranked(plans, by)


def retimed(
    plans: Iterable[GpuPlan], time: Callable[[Layout], Estimate | None], by: By = "cost"
) -> tuple[GpuPlan, ...]:
    """Rank plans anew with the step times that `time` knows for a layout."""
    found = []
    for plan in plans:
        step = time(plan)
        found.append(plan if step is None else replace(plan, step_s=step, cost=_cost(plan, step)))
    return _ranked(found, by)


def with_runs(plans: Iterable[GpuPlan], runs: Sequence[Ran], by: By = "cost") -> tuple[GpuPlan, ...]:
    """Rank plans anew with the time and memory of jobs that ran exactly this step on exactly their GPUs."""
    places: dict[object, list[Ran]] = {}
    for ran in runs:
        places.setdefault(ran.place, []).append(ran)
    found = []
    for plan in plans:
        if (mine := places.get(plan.place)) and not plan.shape.pool.mixed:
            told = used(mine, plan, plan.peak)
            plan = replace(plan, step_s=told.step_s, peak=told.peak, runs=told.runs, host_bytes=told.host_bytes)
            plan = _lined(replace(plan, cost=_cost(plan, plan.step_s)))
        found.append(plan)
    return _ranked(found, by)


def best_of(plans: Iterable[GpuPlan], top: int) -> list[GpuPlan]:
    """Return the best plans that fit; of those that ask Slurm for the same GPUs only the first."""
    return list(islice(_distinct(plan for plan in plans if plan.fits), top))


def explore(
    traces: Traces,
    layouts: Sequence[Layout],
    measure: Measure,
    *,
    top: int = 3,
    by: By = "cost",
    most: int = MOST_TRACES,
) -> tuple[GpuPlan, ...]:
    """Like `fit`, with the traces it needs: few batches at first, then the best plans' own until they are certain.

    First one GPU and plain replicas are traced, each at the smallest and the largest batch. Then, as long as one of the
    `top` best plans that may fit (as `best_of` counts) was not traced itself, it is, up to `most` traces in all. Raises
    Untraceable if no trace succeeds.
    """
    points = [layout.point for layout in layouts]
    plain = [point for point in points if point.parallel.tp == point.parallel.fsdp == 1]
    wanted = sorted(set(ends(plain or points)))
    while wanted:
        for point, result in zip(wanted, measure(wanted), strict=True):
            if isinstance(result, Untraceable):
                traces.fail(point, str(result))
            else:
                traces.add(point, result)
        if not traces.found:
            raise Untraceable(next(iter(traces.failed.values())))
        tried = sum(map(len, traces.found.values())) + len(traces.failed)
        best = islice(_distinct(_promising(traces, layouts, by)), top)
        fresh = dict.fromkeys(layout.point for layout in best if not traces.is_known(layout.point))
        # few at a time: one trace may rule the next one out
        wanted = list(fresh)[: min(AT_ONCE, most - tried)]
    return fit(traces, layouts, by)


def _distinct(layouts: Iterable[L]) -> Iterator[L]:
    """Yield the first of those that ask Slurm for the same GPUs."""
    seen = set()
    for layout in layouts:
        if layout.shape.request not in seen:
            seen.add(layout.shape.request)
            yield layout


def _promising(traces: Traces, layouts: Sequence[Layout], by: By) -> tuple[GpuPlan, ...]:
    """Return the layouts that may fit by all that is known, best first; their memory may still be unknown."""
    plans = []
    for layout in layouts:
        work = traces.work(layout.parallel, layout.batch)
        if work is None or traces.is_out(layout.point):
            continue
        if guarded_bytes(traces.least_bytes(layout.parallel, layout.batch)) <= layout.gpu_bytes:
            plans.append(_plan(layout, work, Estimate(0, 0, 0, "assumed"), traces))
    return _ranked(plans, by)


def _lined(plan: GpuPlan) -> GpuPlan:
    """Return the plan with the lines that ask for it."""
    lines = plan.lines()
    return replace(plan, sbatch=tuple(line.text for line in lines), why=tuple(line.why for line in lines))


def _plan(layout: Layout, work: datasheet.StepWork, peak: Estimate, source: Source) -> GpuPlan:
    shape, parallel = layout.shape, layout.parallel
    times = (
        datasheet.step_s(work, parallel, gpu, shape.nodes, shape.network_bytes_s, source.precision)
        for gpu in shape.pool.possible
    )
    step = max(times, key=lambda each: each.value)
    micro_batches = layout.batch // source.micro_batch(parallel, layout.batch)
    return GpuPlan(
        shape, layout.splits, layout.global_batch, micro_batches, step_s=step, peak=peak, cost=_cost(layout, step)
    )


def _cost(layout: Layout, step: Estimate) -> Estimate:
    return datasheet.cost_of(step, layout.shape.paid, layout.shape.pool.gpu)


def _ranked(plans: Iterable[GpuPlan], by: By) -> tuple[GpuPlan, ...]:
    return tuple(sorted(plans, key=lambda plan: _rank(plan, by)))


def _rank(plan: GpuPlan, by: By) -> tuple[object, ...]:
    if not plan.fits:
        return (1, plan.peak.high - plan.gpu_bytes, plan.gpus, plan.nodes, plan.partition, plan.parallel)
    measures = (plan.cost.value, plan.step_s.value) if by == "cost" else (plan.step_s.value, plan.cost.value)
    return (0, *measures, plan.step_s.high, plan.nodes, plan.gpus, plan.partition, plan.parallel)
