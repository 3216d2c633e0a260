"""What became of the jobs of a simulation, as plain data: reports are made of it elsewhere (sizing.simulate.report)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing.simulate.world import Held, SimulatedJob


@dataclass(frozen=True, slots=True)
class Span:
    """A job kept one allocation from `from_s` to `until_s` and did `rate` iterations a second from `ready_s` on.

    It is idle before `ready_s`, which is `from_s` at a first start and the end of a restart otherwise; `ready_s` may
    lie behind `until_s` where the allocation was taken away while it still restarted.
    """

    allocation: Held
    from_s: float
    ready_s: float
    until_s: float
    rate: float

    @property
    def iterations(self) -> float:
        """Done in it."""
        return self.rate * max(0.0, self.until_s - self.ready_s)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """A job's fate. `end_s` is None where it had not ended; `dropped_s` is when the policy gave it up, else None.

    `restarts` counts the allocations that it got after its first: growing, shrinking, moving, and going on after it was
    suspended.
    `reference_rate` are the iterations a second that count as 1 in normalised throughput.
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
        """From submission to end (the job completion time), None where it did not end."""
        return None if self.end_s is None else self.end_s - self.job.submit_s

    @property
    def queued_s(self) -> float | None:
        """From submission to the first start, None where it did not start."""
        return None if self.start_s is None else self.start_s - self.job.submit_s

    @property
    def met_deadline(self) -> bool | None:
        """Whether it ended by its deadline, None where it has none."""
        if self.job.deadline_s is None:
            return None
        return self.end_s is not None and self.end_s <= self.job.deadline_s


@dataclass(frozen=True, slots=True)
class Level:
    """What the cluster does from `at_s` on, until the next level.

    `normalised` adds up each job's rate over its reference rate: a job that runs as asked for counts 1. `iterations`
    adds up iterations a second of all models, and `gpus` are those in use, jobs that restart included.
    """

    at_s: float
    normalised: float
    iterations: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole simulation: its jobs in order of submission, its levels in order of time, and how often it was asked."""

    policy: str
    jobs: tuple[JobOutcome, ...]
    throughput: tuple[Level, ...]
    end_s: float
    decisions: int


def levels(jobs: Sequence[JobOutcome]) -> tuple[Level, ...]:
    """The throughput over time: one level for each time at which it changes."""
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
        # what is left of differences is the arithmetic's, not the cluster's
        if gpus == 0:
            normalised = iterations = 0.0
        found.append(Level(at_s, max(0.0, normalised), max(0.0, iterations), gpus))
    return tuple(found)


def average(found: Sequence[Level], from_s: float, until_s: float) -> float:
    """The mean normalised throughput between two times."""
    if until_s <= from_s or not found:
        return 0.0
    done = 0.0
    for level, following in zip(found, [*found[1:], None], strict=True):
        end_s = until_s if following is None else min(following.at_s, until_s)
        done += level.normalised * max(0.0, end_s - max(level.at_s, from_s))
    return done / (until_s - from_s)
