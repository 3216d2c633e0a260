"""A simulated cluster: jobs of a trace arrive, a policy gives them GPUs, they train at their true rates and end.

Time jumps from event to event: arrivals, ends and the policy's own interval. What happens at the same time is one
moment, and one question to the policy. Progress is exact: iterations are rate times seconds, nothing is rounded to
rounds. Nothing here reads a clock or draws a number, so the same input gives the same outcome.

What is simplified: GPUs are a pool for each type, as in the paper (Crius, section 8): where they stand in nodes matters
to the rates alone, never to whether an allocation can be had. A restart loses its time and no iterations.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sizing.errors import SizingError, UsageError
from sizing.simulate.outcome import JobOutcome, Outcome, Span, levels
from sizing.simulate.reference import power_of_two, reference_rate
from sizing.simulate.types import Allocation, Decision, Moment, Policy, Running, SimulatedJob, Speeds, Waiting

RESTART_S = 30.0
"""What a new allocation costs a job that has run before: saving, starting its ranks anew and loading.

The paper says nothing of it. A checkpoint of a model of some billion parameters is some ten GB, read and written at a
few GB/s; half a minute is also what simulators of other elastic schedulers take.
"""
STUCK_ROUNDS = 100_000
"""So many rounds in a row in which no job arrives, starts for the first time or ends: the policy goes round in circles.

With rounds of five minutes that is a year.
"""


class BrokenRule(SizingError):
    """A policy gave what cannot be given; the message names the policy, the time and the job."""


@dataclass(slots=True)
class _Job:
    """A job that has been submitted and has not ended."""

    job: SimulatedJob
    order: int
    reference_rate: float
    left: float
    held: Allocation | None = None
    last: Allocation | None = None
    rate: float = 0.0
    from_s: float = 0.0
    ready_s: float = 0.0
    restarts: int = 0
    start_s: float | None = None
    spans: list[Span] = field(default_factory=list)
    version: int = 0
    waiting: Waiting | None = None

    def remaining(self, now_s: float) -> float:
        """Iterations that are left now."""
        done = self.rate * max(0.0, now_s - self.ready_s) if self.held is not None else 0.0
        return max(0.0, self.left - done)

    def release(self, now_s: float) -> None:
        """Its GPUs are taken away: what it did with them is written down."""
        if self.held is None:
            return
        if now_s > self.from_s:
            self.spans.append(Span(self.held, self.from_s, self.ready_s, now_s, self.rate))
        self.left = self.remaining(now_s)
        self.held, self.waiting = None, None
        self.version += 1

    def outcome(self, end_s: float | None = None, dropped_s: float | None = None) -> JobOutcome:
        """Of its whole life."""
        spans = tuple(self.spans)
        return JobOutcome(self.job, self.start_s, end_s, dropped_s, self.restarts, self.reference_rate, spans)


def simulate(
    jobs: Sequence[SimulatedJob],
    capacity: Mapping[str, int],
    policy: Policy,
    speeds: Speeds,
    *,
    restart_s: float = RESTART_S,
    until_s: float | None = None,
) -> Outcome:
    """What becomes of jobs on a cluster of `capacity` GPUs by type under a policy.

    `speeds` are the true rates; the policy has been given its own, which may be wrong. Nothing happens after `until_s`.
    Raises UsageError for jobs that make no sense, and BrokenRule where the policy gives what it must not.
    """
    _check(jobs, capacity, restart_s)
    return _Simulation(jobs, capacity, policy, speeds, restart_s, until_s).run()


class _Simulation:
    """The state of one simulation."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        capacity: Mapping[str, int],
        policy: Policy,
        speeds: Speeds,
        restart_s: float,
        until_s: float | None,
    ) -> None:
        self.capacity = dict(capacity)
        self.policy, self.speeds, self.restart_s = policy, speeds, restart_s
        self.until_s = float("inf") if until_s is None else until_s
        self.coming = sorted(jobs, key=lambda job: job.submit_s)
        self.next = 0
        self.there: dict[str, _Job] = {}
        self.ends: list[tuple[float, int, str, int]] = []
        self.outcomes: dict[str, JobOutcome] = {}
        self.references: dict[tuple[str, str, int], float] = {}
        self.rates: dict[tuple[str, Allocation], float] = {}
        self.now_s = self.coming[0].submit_s if self.coming else 0.0
        self.round = 0
        self.decisions = 0
        self.idle_rounds = 0
        self.ended = False

    def run(self) -> Outcome:
        """From the first arrival to the last end."""
        start_s = self.now_s
        interval_s = self.policy.interval_s
        while (at_s := self._next(start_s)) is not None and at_s <= self.until_s:
            self.now_s = at_s
            ended = self.ended = self._end() or self.ended
            arrived = self._arrive()
            tick = interval_s is not None and at_s >= start_s + self.round * interval_s
            while interval_s is not None and at_s >= start_s + self.round * interval_s:
                self.round = max(self.round + 1, int((at_s - start_s) / interval_s))
            if self.there and (arrived or ended or tick):
                self.ended = False
                started = self._decide(arrived, ended)
                self.idle_rounds = 0 if arrived or ended or started else self.idle_rounds + 1
                if self.idle_rounds > STUCK_ROUNDS:
                    raise BrokenRule(
                        f"{self.policy.name} has been asked {STUCK_ROUNDS} times since a job last started or ended: "
                        f"it goes round in circles"
                    )
        end_s = self.now_s if self.until_s == float("inf") else self.until_s
        for one in self.there.values():
            one.release(end_s)
            self.outcomes[one.job.id] = one.outcome()
        for job in self.coming[self.next :]:
            self.outcomes[job.id] = JobOutcome(job, None, None, None, 0, self._reference(job), ())
        found = tuple(self.outcomes[job.id] for job in self.coming)
        return Outcome(self.policy.name, found, levels(found), end_s, self.decisions)

    def _next(self, start_s: float) -> float | None:
        """The time of the next event, None where nothing will happen any more."""
        while self.ends and not self._current(self.ends[0]):
            heapq.heappop(self.ends)
        times = [self.ends[0][0]] if self.ends else []
        if self.next < len(self.coming):
            times.append(self.coming[self.next].submit_s)
        # a policy that leaves everything idle with nothing to come is asked a few more times, and then believed
        if self.there and self.policy.interval_s is not None and (times or self.idle_rounds < 1000):
            times.append(start_s + self.round * self.policy.interval_s)
        return min(times, default=None)

    def _current(self, end: tuple[float, int, str, int]) -> bool:
        """Whether an end on the heap is still to come as it was worked out."""
        one = self.there.get(end[2])
        return one is not None and one.version == end[3]

    def _end(self) -> bool:
        """Takes the jobs away that end now."""
        ended = False
        while self.ends and self.ends[0][0] <= self.now_s:
            end = heapq.heappop(self.ends)
            if self._current(end):
                one = self.there.pop(end[2])
                one.release(self.now_s)
                self.outcomes[one.job.id] = one.outcome(end_s=self.now_s)
                ended = True
        return ended

    def _arrive(self) -> frozenset[str]:
        """Takes the jobs in that come now."""
        arrived = []
        while self.next < len(self.coming) and self.coming[self.next].submit_s <= self.now_s:
            job = self.coming[self.next]
            self.there[job.id] = _Job(job, self.next, self._reference(job), job.iterations)
            arrived.append(job.id)
            self.next += 1
        return frozenset(arrived)

    def _reference(self, job: SimulatedJob) -> float:
        key = (job.model, job.gpu_type, job.gpus)
        if key not in self.references:
            self.references[key] = reference_rate(self.speeds, job, tuple(self.capacity))
        return self.references[key]

    def _decide(self, arrived: frozenset[str], ended: bool) -> bool:
        """Asks the policy and does what it says; whether a job has been dropped or starts that never ran before."""
        running, waiting = [], []
        for one in self.there.values():
            if one.held is not None:
                running.append(Running(one.job, one.held, one.from_s, one.remaining(self.now_s)))
            else:
                if one.waiting is None:
                    one.waiting = Waiting(one.job, one.left)
                waiting.append(one.waiting)
        self.decisions += 1
        decision = self.policy.decide(Moment(self.now_s, running, waiting, dict(self.capacity), arrived, ended))
        changed = self._changed(decision)
        for id in decision.dropped:
            one = self.there.pop(id)
            one.release(self.now_s)
            self.outcomes[id] = one.outcome(dropped_s=self.now_s)
        # GPUs are given back before others have them
        for one in self.there.values():
            if one.held is not None and one.job.id not in decision.allocations:
                one.release(self.now_s)
        new = bool(decision.dropped)
        for id, (allocation, rate) in changed.items():
            one = self.there[id]
            one.release(self.now_s)
            new = new or one.start_s is None
            self._give(one, allocation, rate)
        return new

    def _give(self, one: _Job, allocation: Allocation, rate: float) -> None:
        """A job has an allocation from now on, and ends when it has done what is left."""
        again = one.last is not None
        if one.start_s is None:
            one.start_s = self.now_s
        one.restarts += again
        one.held, one.last, one.rate, one.waiting = allocation, allocation, rate, None
        one.from_s = self.now_s
        one.ready_s = self.now_s + (self.restart_s if again else 0.0)
        one.version += 1
        heapq.heappush(self.ends, (one.ready_s + one.left / rate, one.order, one.job.id, one.version))

    def _changed(self, decision: Decision) -> dict[str, tuple[Allocation, float]]:
        """What is new in a decision, with the true rates; raises BrokenRule where it cannot be done."""
        used: Counter[str] = Counter()
        changed = {}
        for id, allocation in decision.allocations.items():
            used[allocation.gpu_type] += allocation.gpus
            one = self.there.get(id)
            if one is None or id in decision.dropped:
                raise self._broken(f"gives GPUs to {id!r}, which is {'dropped' if one else 'not there'}")
            if one.held == allocation:
                continue
            if not power_of_two(allocation.gpus):
                raise self._broken(f"gives {allocation.gpus} GPUs to {id!r}: a cell has 1, 2, 4, 8... GPUs")
            if not 1 <= allocation.stages <= allocation.gpus:
                raise self._broken(f"gives {id!r} {allocation.stages} stages on {allocation.gpus} GPUs")
            if allocation.gpu_type not in self.capacity:
                raise self._broken(f"gives {id!r} GPUs of type {allocation.gpu_type!r}, which the cluster has not")
            if (rate := self._rate(one.job.model, allocation)) <= 0:
                raise self._broken(f"gives {id!r} {allocation}, where {one.job.model} does not fit")
            changed[id] = (allocation, rate)
        for gpu_type, count in used.items():
            if count > self.capacity[gpu_type]:
                there = self.capacity[gpu_type]
                raise self._broken(f"gives {count} GPUs of type {gpu_type!r}, of which there are {there}")
        if missing := decision.dropped - self.there.keys():
            raise self._broken(f"drops {min(missing)!r}, which is not there")
        return changed

    def _rate(self, model: str, allocation: Allocation) -> float:
        key = (model, allocation)
        if key not in self.rates:
            self.rates[key] = self.speeds.rate(model, allocation)
        return self.rates[key]

    def _broken(self, what: str) -> BrokenRule:
        return BrokenRule(f"{self.policy.name} {what} (at {self.now_s:.0f} s)")


def _check(jobs: Sequence[SimulatedJob], capacity: Mapping[str, int], restart_s: float) -> None:
    """Refuses jobs and clusters that make no sense."""
    seen = set()
    for job in jobs:
        if job.id in seen:
            raise UsageError(f"two jobs are called {job.id!r}: give each an id of its own")
        seen.add(job.id)
        if not (0 < job.iterations < float("inf") and abs(job.submit_s) < float("inf")):
            raise UsageError(f"job {job.id!r} has {job.iterations} iterations at {job.submit_s} s: give finite numbers")
        if not power_of_two(job.gpus):
            below = 1 << max(job.gpus, 1).bit_length() - 1
            raise UsageError(
                f"job {job.id!r} asks for {job.gpus} GPUs: cells have powers of two, take {below} or {2 * below}"
            )
    if min(capacity.values(), default=0) < 0:
        raise UsageError("a cluster has no fewer than 0 GPUs of a type")
    if not 0 <= restart_s < float("inf"):
        raise UsageError(f"a restart cannot take {restart_s} s: give 0 or more")
