"""The results of a simulation: figures of each run, and their means over seeds with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from studies.simulation.outcome import JobOutcome, Outcome

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom."""
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one policy, times in seconds.

    Completion times (JCT) are of jobs that ended, queueing times of those that started, None if there are none.
    `window_*` cover the time from the first submission to the last, which is the same for all policies: jobs that ended
    in it, and the mean throughput. Normalised throughput counts a job that runs as requested as 1, raw throughput adds
    up samples a second of all models as the paper does; peaks are of the whole run. `deadlines` is the share of jobs
    with a deadline that met it, None if no job has one. `decision_s` is the simulation's time per decision, None if not
    measured.
    """

    jobs: int
    finished: int
    dropped: int
    mean_jct_s: float | None
    median_jct_s: float | None
    p99_jct_s: float | None
    mean_queue_s: float | None
    makespan_s: float
    restarts: float
    window_finished: int
    window_normalised: float
    peak_normalised: float
    window_raw: float
    peak_raw: float
    deadlines: float | None = None
    decision_s: float | None = None


NAMES = tuple(field.name for field in fields(Figures))


def figures(outcome: Outcome, batches: Mapping[str, int], *, took_s: float | None = None) -> Figures:
    """Return the figures of a run; `batches` are the samples of an iteration by model."""
    jobs = outcome.jobs
    first_s = min((each.job.submit_s for each in jobs), default=0.0)
    last_s = max((each.job.submit_s for each in jobs), default=0.0)
    done = sorted(each.completion_s for each in jobs if each.completion_s is not None)
    queued = [each.queued_s for each in jobs if each.queued_s is not None]
    met = [each.met_deadline for each in jobs if each.met_deadline is not None]
    ends = [each.end_s for each in jobs if each.end_s is not None]
    normalised, raw = _throughput(jobs, batches, first_s, last_s)
    return Figures(
        jobs=len(jobs),
        finished=len(done),
        dropped=sum(each.dropped_s is not None for each in jobs),
        mean_jct_s=statistics.fmean(done) if done else None,
        median_jct_s=statistics.median(done) if done else None,
        p99_jct_s=quantile(done, 0.99) if done else None,
        mean_queue_s=statistics.fmean(queued) if queued else None,
        makespan_s=max(ends, default=first_s) - first_s,
        restarts=statistics.fmean(each.restarts for each in jobs) if jobs else 0.0,
        window_finished=sum(end <= last_s for end in ends),
        window_normalised=normalised,
        peak_normalised=max((level.normalised for level in outcome.throughput), default=0.0),
        window_raw=raw,
        peak_raw=_peak(jobs, batches),
        deadlines=sum(met) / len(met) if met else None,
        decision_s=took_s / outcome.decisions if took_s is not None and outcome.decisions else None,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least of sorted values that is at least as large as this share of them (nearest rank); 0 of none."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def _throughput(
    jobs: Sequence[JobOutcome], batches: Mapping[str, int], first_s: float, last_s: float
) -> tuple[float, float]:
    """Return the mean normalised throughput and samples a second between two times."""
    if last_s <= first_s:
        return 0.0, 0.0
    normalised = raw = 0.0
    for each in jobs:
        within = sum(
            span.rate * max(0.0, min(span.until_s, last_s) - max(span.ready_s, first_s)) for span in each.spans
        )
        normalised += within / each.reference_rate if each.reference_rate > 0 else 0.0
        raw += within * batches[each.job.model]
    return normalised / (last_s - first_s), raw / (last_s - first_s)


def _peak(jobs: Sequence[JobOutcome], batches: Mapping[str, int]) -> float:
    """Return the most samples a second at once."""
    steps: list[tuple[float, float]] = []
    for each in jobs:
        for span in each.spans:
            if span.until_s > span.ready_s:
                samples = span.rate * batches[each.job.model]
                steps += [(span.ready_s, samples), (span.until_s, -samples)]
    most = now = 0.0
    for _, change in sorted(steps):  # an end goes before a beginning at the same time
        now += change
        most = max(most, now)
    return most


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95 % confidence interval (Student's t); for one seed `low` and `high` equal it."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return its form in reports."""
        return {"mean": self.value, "low": self.low, "high": self.high}


def interval(values: Sequence[float]) -> Interval:
    """Return the mean and interval of at least one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    factor = _STUDENT[len(values) - 2] if len(values) - 2 < len(_STUDENT) else _NORMAL
    half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired(values: Sequence[float], others: Sequence[float]) -> Interval | None:
    """Return the geometric mean of ratios of pairs (of the same seed) and its interval, None if a value is 0."""
    if not values or min(*values, *others) <= 0:
        return None
    found = interval([math.log(value / other) for value, other in zip(values, others, strict=True)])
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def summary(runs: Sequence[Figures]) -> dict[str, Interval]:
    """Return the interval of each figure over the seeds; figures that some run lacks are left out."""
    found = {}
    for name in NAMES:
        values = [getattr(run, name) for run in runs]
        if runs and all(value is not None for value in values):
            found[name] = interval([float(value) for value in values])
    return found


def to_json(runs: Sequence[Figures]) -> dict[str, Any]:
    """Return a policy's figures over the seeds."""
    return {name: each.to_json() for name, each in summary(runs).items()}
