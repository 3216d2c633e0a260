"""The outcomes of a simulation's jobs, as plain data: reports are made from them in studies.simulation.report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.simulation.world import Held, SimulatedJob


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a job kept one allocation, from `from_s` to `until_s`, at `rate` iterations a second.

    It is idle before `ready_s`, which is `from_s` at a first start and otherwise the end of a restart; `ready_s` may be
    after `until_s` if the allocation was taken away during a restart.
    """

    allocation: Held
    from_s: float
    ready_s: float
    until_s: float
    rate: float

    @property
    def iterations(self) -> float:
        """Iterations done in it."""
        return self.rate * max(0.0, self.until_s - self.ready_s)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """A job's fate. `end_s` is None if it did not end; `dropped_s` is when the policy dropped it, else None.

    `restarts` counts the allocations after its first: growing, shrinking, moving, and resuming after a suspension.
    `reference_rate` is the number of iterations a second that counts as 1 in normalised throughput.
    """

    job: SimulatedJob
    start_s: float | None
    end_s: float | None
    dropped_s: float | None
    restarts: int
    reference_rate: float
    spans: tuple[Span, ...]

    @property
    def completion_s(self) -> float | None:
        """Time from submission to end (the job completion time), None if it did not end."""
        return None if self.end_s is None else self.end_s - self.job.submit_s

    @property
    def queued_s(self) -> float | None:
        """Time from submission to the first start, None if it did not start."""
        return None if self.start_s is None else self.start_s - self.job.submit_s

    @property
    def met_deadline(self) -> bool | None:
        """Whether it ended by its deadline, None if it has none."""
        if self.job.deadline_s is None:
            return None
        return self.end_s is not None and self.end_s <= self.job.deadline_s


@dataclass(frozen=True, slots=True)
class Level:
    """The state of the cluster from `at_s` on, until the next level.

    `normalised` adds up each job's rate over its reference rate: a job that runs as requested counts 1. `iterations`
    adds up iterations a second of all models, and `gpus` are those in use, including jobs that restart.
    """

    at_s: float
    normalised: float
    iterations: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation: its jobs in order of submission, its levels in order of time, and the number of decisions."""

    policy: str
    jobs: tuple[JobOutcome, ...]
    throughput: tuple[Level, ...]
    end_s: float
    decisions: int


def levels(jobs: Sequence[JobOutcome]) -> tuple[Level, ...]:
    """Return the throughput over time: one level for each time at which it changes."""
    steps: dict[float, list[tuple[float, float, int]]] = {}
    for outcome in jobs:
        for span in outcome.spans:
            gpus = span.allocation.gpus
            steps.setdefault(span.from_s, []).append((0.0, 0.0, gpus))
            steps.setdefault(span.until_s, []).append((0.0, 0.0, -gpus))
            if span.ready_s < span.until_s:
                share = span.rate / outcome.reference_rate if outcome.reference_rate > 0 else 0.0
                steps.setdefault(span.ready_s, []).append((share, span.rate, 0))
                steps.setdefault(span.until_s, []).append((-share, -span.rate, 0))
    found, normalised, iterations, gpus = [], 0.0, 0.0, 0
    for at_s in sorted(steps):
        for share, rate, more in steps[at_s]:
            normalised, iterations, gpus = normalised + share, iterations + rate, gpus + more
        # with no GPU in use, any remainder is rounding
        if gpus == 0:
            normalised = iterations = 0.0
        found.append(Level(at_s, max(0.0, normalised), max(0.0, iterations), gpus))
    return tuple(found)


def average(found: Sequence[Level], from_s: float, until_s: float) -> float:
    """Return the mean normalised throughput between two times."""
    if until_s <= from_s or not found:
        return 0.0
    done = 0.0
    for level, following in zip(found, [*found[1:], None], strict=True):
        end_s = until_s if following is None else min(following.at_s, until_s)
        done += level.normalised * max(0.0, end_s - max(level.at_s, from_s))
    return done / (until_s - from_s)
