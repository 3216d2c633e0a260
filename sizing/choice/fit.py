"""The choice of GPUs to train a model on: all spreads over an inventory, ranked by the cost of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

from sizing.base.errors import Untraceable
from sizing.base.estimate import Estimate
from sizing.base.plan import GpuPlan
from sizing.choice.candidates import Candidate
from sizing.choice.ran import Ran, used
from sizing.choice.sources import RankBatch, Source, Traces, ends
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace
from sizing.sbatch import lines
from sizing.step_time import datasheet

T = TypeVar("T")

By = Literal["cost", "time"]
"""The ranking of plans: by GPUs x time x the type's worth, or by time alone."""

MOST_TRACES = 16
"""Most traces of one `bft size fit`: two at a time, a trace takes a few seconds."""

AT_ONCE = 2
"""Traces that run side by side: each takes a core and up to 2 GB."""

Measure = Callable[[Sequence[RankBatch]], Sequence[StepTrace | Untraceable]]
"""A function that traces points, some at once, and returns each trace or the reason there is none."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A plan with the candidate that it was made from."""

    plan: GpuPlan
    candidate: Candidate


def fit(source: Source, candidates: Iterable[Candidate], by: By = "cost") -> tuple[PlanChoice, ...]:
    """Return plans of all candidates for which the source knows the memory, best first, with their #SBATCH lines.

    Plans that fit come first, by cost or time; of equal ones the faster, also at worst, then the one on fewer nodes.
    The others follow by the bytes that a GPU lacks.
    """
    chosen = [choice for candidate in candidates if (choice := _choice(source, candidate)) is not None]
    return tuple(sorted(chosen, key=lambda choice: _rank(choice.plan, by)))


def retimed(
    choices: Iterable[PlanChoice], time: Callable[[Candidate, int], Estimate | None], by: By = "cost"
) -> tuple[PlanChoice, ...]:
    """Rank plans anew with the step times that `time` knows for a candidate and its number of micro-batches."""
    found = []
    for choice in choices:
        plan, candidate = choice.plan, choice.candidate
        step = time(candidate, plan.batch // (plan.micro_batch or plan.batch))
        if step is not None:
            paid = candidate.pool.paid(plan.gpus, plan.nodes)
            plan = replace(plan, step_s=step, cost=datasheet.cost_of(step, paid, candidate.pool.gpu))
        found.append(replace(choice, plan=plan))
    return tuple(sorted(found, key=lambda choice: _rank(choice.plan, by)))


def with_runs(choices: Iterable[PlanChoice], runs: Sequence[Ran], by: By = "cost") -> tuple[PlanChoice, ...]:
    """Rank plans anew with the time and memory of jobs that ran exactly this step on exactly their GPUs."""
    places: dict[object, list[Ran]] = {}
    for ran in runs:
        places.setdefault(ran.place, []).append(ran)
    found = []
    for choice in choices:
        plan, candidate = choice.plan, choice.candidate
        if (mine := places.get(candidate.place)) and not candidate.pool.mixed:
            told = used(mine, plan.peak, plan.gpu_bytes)
            worth = datasheet.cost_of(told.step_s, candidate.pool.paid(plan.gpus, plan.nodes), candidate.pool.gpu)
            plan = replace(
                plan, step_s=told.step_s, peak=told.peak, cost=worth, runs=told.runs, host_bytes=told.host_bytes
            )
            choice = replace(choice, plan=_lined(plan, candidate))
        found.append(choice)
    return tuple(sorted(found, key=lambda choice: _rank(choice.plan, by)))


def best_of(choices: Iterable[PlanChoice], top: int) -> list[PlanChoice]:
    """Return the best plans that fit; of those that ask Slurm for the same GPUs only the first."""
    fitting = (choice for choice in choices if choice.plan.fits)
    return list(islice(_distinct(fitting, lambda choice: _request(choice.candidate)), top))


def explore(
    traces: Traces,
    candidates: Sequence[Candidate],
    measure: Measure,
    *,
    top: int = 3,
    by: By = "cost",
    most: int = MOST_TRACES,
) -> tuple[PlanChoice, ...]:
    """Like `fit`, with the traces it needs: few batches at first, then the best plans' own until they are certain.

    First one GPU and plain replicas are traced, each at the smallest and the largest batch. Then, as long as one of the
    `top` best plans that may fit (as `best_of` counts) was not traced itself, it is, up to `most` traces in all. Raises
    Untraceable if no trace succeeds.
    """
    plain = [point for point in map(_point, candidates) if point.parallel.tp == point.parallel.fsdp == 1]
    wanted = sorted(set(ends(plain or map(_point, candidates))))
    while wanted:
        for point, result in zip(wanted, measure(wanted), strict=True):
            if isinstance(result, Untraceable):
                traces.fail(point, str(result))
            else:
                traces.add(point, result)
        if not traces.found:
            raise Untraceable(next(iter(traces.failed.values())))
        tried = sum(map(len, traces.found.values())) + len(traces.failed)
        best = list(islice(_distinct(_promising(traces, candidates, by), _request), top))
        fresh = dict.fromkeys(point for point in map(_point, best) if not traces.is_known(point))
        # few at a time: one trace may rule the next one out
        wanted = list(fresh)[: min(AT_ONCE, most - tried)]
    return fit(traces, candidates, by)


def _request(candidate: Candidate) -> tuple[object, ...]:
    """Return the key of a request to Slurm, which does not see how a model is spread over its GPUs."""
    pool = candidate.pool
    return pool.partition, pool.gpu.name, pool.gres_type, candidate.nodes, candidate.parallel.gpus


def _distinct(items: Iterable[T], key: Callable[[T], object]) -> Iterator[T]:
    seen = set()
    for item in items:
        if (what := key(item)) not in seen:
            seen.add(what)
            yield item


def _promising(traces: Traces, candidates: Sequence[Candidate], by: By) -> list[Candidate]:
    """Return the candidates that may fit by all that is known, best first; their memory may still be unknown."""
    ranked = []
    for candidate in candidates:
        point = _point(candidate)
        work = traces.work(point.parallel, point.batch)
        if work is None or traces.is_out(point):
            continue
        if guarded_bytes(traces.least_bytes(point.parallel, point.batch)) > candidate.pool.gpu_bytes:
            continue
        plan = _plan(candidate, work, Estimate(0, 0, 0, "assumed"), traces)
        ranked.append((_rank(plan, by), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]


def _point(candidate: Candidate) -> RankBatch:
    return RankBatch(candidate.parallel, candidate.batch)


def _choice(source: Source, candidate: Candidate) -> PlanChoice | None:
    peak = source.peak(candidate.parallel, candidate.batch)
    work = source.work(candidate.parallel, candidate.batch)
    if peak is None or work is None:
        return None
    return PlanChoice(_lined(_plan(candidate, work, peak, source), candidate), candidate)


def _lined(plan: GpuPlan, candidate: Candidate) -> GpuPlan:
    """Return the plan with the lines that ask for it."""
    written = lines.written(plan, candidate.pool)
    return replace(plan, sbatch=tuple(line.text for line in written), why=tuple(line.why for line in written))


def _plan(candidate: Candidate, work: datasheet.StepWork, peak: Estimate, source: Source) -> GpuPlan:
    pool, parallel = candidate.pool, candidate.parallel
    per_node = parallel.gpus // candidate.nodes
    network = min(group.network_bytes_s for group in pool.having(per_node))
    times = (datasheet.step_s(work, parallel, gpu, candidate.nodes, network, source.precision) for gpu in pool.possible)
    step = max(times, key=lambda each: each.value)
    return GpuPlan(
        partition=pool.partition,
        gpu_type=pool.gpu.name,
        gpus=parallel.gpus,
        nodes=candidate.nodes,
        parallel=parallel,
        batch=candidate.batch,
        peak=peak,
        gpu_bytes=pool.gpu_bytes,
        step_s=step,
        cost=datasheet.cost_of(step, pool.paid(parallel.gpus, candidate.nodes), pool.gpu),
        micro_batch=source.micro_batch(parallel, candidate.batch),
    )


def _rank(plan: GpuPlan, by: By) -> tuple[object, ...]:
    if not plan.fits:
        return (1, plan.peak.high - plan.gpu_bytes, plan.gpus, plan.nodes, plan.partition, plan.parallel)
    measures = (plan.cost.value, plan.step_s.value) if by == "cost" else (plan.step_s.value, plan.cost.value)
    return (0, *measures, plan.step_s.high, plan.nodes, plan.gpus, plan.partition, plan.parallel)
