"""A simulated cluster: jobs of a trace arrive, a policy gives them GPUs, they train at their true rates and end.

A `World` defines the resources, the valid allocations and the speed of jobs with them: pools of GPU types for
schedulers of cells (studies.simulation.pools), servers with CPUs and memory for rounds (studies.synergy.servers).

Time jumps from event to event: arrivals, ends and the policy's own interval. Events at the same time are one moment,
and one call of the policy. Progress is exact: iterations are rate times seconds, nothing is rounded to rounds. Nothing
here reads a clock or draws a number, so the same input gives the same outcome.

Simplification: a restart loses time but no iterations, and takes the same for every job.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from sizing.base.errors import SizingError, UsageError
from studies.simulation.outcome import JobOutcome, Outcome, Span, levels
from studies.simulation.pools import Pools
from studies.simulation.types import Allocation, SimulatedJob, Speeds
from studies.simulation.world import A, CannotGive, Decision, Moment, Policy, Running, Waiting, World

RESTART_S = 30.0
"""The time that a new allocation costs a job that has run before: saving, starting its ranks anew and loading.

The paper does not give it. A checkpoint of a model of some billion parameters is some ten GB, read and written at a few
GB/s; simulators of other elastic schedulers also take half a minute.
"""
STUCK_ROUNDS = 100_000
"""Most rounds in a row without an arrival, a first start or an end: beyond it the policy is going round in circles.

With rounds of five minutes that is a year.
"""


class BrokenRule(SizingError):
    """A policy gave an invalid allocation; the message names the policy, the time and the job."""


@dataclass(slots=True)
class _Job(Generic[A]):
    """A job that has been submitted and has not ended."""

    job: SimulatedJob
    order: int
    reference_rate: float
    left: float
    held: A | None = None
    ran: bool = False
    rate: float = 0.0
    from_s: float = 0.0
    ready_s: float = 0.0
    restarts: int = 0
    start_s: float | None = None
    spans: list[Span] = field(default_factory=list)
    version: int = 0
    waiting: Waiting | None = None

    def remaining(self, now_s: float) -> float:
        """Return the iterations that are left now."""
        done = self.rate * max(0.0, now_s - self.ready_s) if self.held is not None else 0.0
        return max(0.0, self.left - done)

    def release(self, now_s: float) -> None:
        """Take its GPUs away and record what it did with them."""
        if self.held is None:
            return
        if now_s > self.from_s:
            self.spans.append(Span(self.held, self.from_s, self.ready_s, now_s, self.rate))
        self.left = self.remaining(now_s)
        self.held, self.waiting = None, None
        self.version += 1

    def outcome(self, end_s: float | None = None, dropped_s: float | None = None) -> JobOutcome:
        """Return the outcome of its whole life."""
        spans = tuple(self.spans)
        return JobOutcome(self.job, self.start_s, end_s, dropped_s, self.restarts, self.reference_rate, spans)


def simulate(
    jobs: Sequence[SimulatedJob],
    capacity: Mapping[str, int],
    policy: Policy[Allocation],
    speeds: Speeds,
    *,
    restart_s: float = RESTART_S,
    until_s: float | None = None,
) -> Outcome:
    """Simulate jobs on a cluster of `capacity` GPUs by type under a policy.

    `speeds` are the true rates; the policy has its own, which may be wrong. Nothing happens after `until_s`. Raises
    UsageError for invalid jobs, and BrokenRule if the policy gives an invalid allocation.
    """
    return simulate_in(Pools(capacity, speeds), jobs, policy, restart_s=restart_s, until_s=until_s)


def simulate_in(
    world: World[A],
    jobs: Sequence[SimulatedJob],
    policy: Policy[A],
    *,
    restart_s: float = RESTART_S,
    until_s: float | None = None,
    rounds: bool = False,
) -> Outcome:
    """Simulate jobs in any world; with `rounds` the policy is asked only at its interval. Raises as above.

    A round that is due while there is no job begins with the next arrival.
    """
    _check(jobs, restart_s)
    world.refuse(jobs)
    return _Simulation(world, jobs, policy, restart_s, until_s, rounds=rounds).run()


class _Simulation(Generic[A]):
    """The state of one simulation."""

    def __init__(
        self,
        world: World[A],
        jobs: Sequence[SimulatedJob],
        policy: Policy[A],
        restart_s: float,
        until_s: float | None,
        *,
        rounds: bool,
    ) -> None:
        self.world, self.policy, self.restart_s, self.rounds = world, policy, restart_s, rounds
        self.until_s = float("inf") if until_s is None else until_s
        self.coming = sorted(jobs, key=lambda job: job.submit_s)
        self.next = 0
        self.there: dict[str, _Job[A]] = {}
        self.ends: list[tuple[float, int, str, int]] = []
        self.outcomes: dict[str, JobOutcome] = {}
        self.now_s = self.coming[0].submit_s if self.coming else 0.0
        self.round = 0
        self.decisions = 0
        self.idle_rounds = 0
        self.ended = False
        self.arrived: frozenset[str] = frozenset()

    def run(self) -> Outcome:
        """Run from the first arrival to the last end."""
        start_s = self.now_s
        interval_s = self.policy.interval_s
        while (at_s := self._next(start_s)) is not None and at_s <= self.until_s:
            self.now_s = at_s
            ended = self.ended = self._end() or self.ended
            arrived = self.arrived = self.arrived | self._arrive()
            tick = interval_s is not None and at_s >= start_s + self.round * interval_s
            while interval_s is not None and at_s >= start_s + self.round * interval_s:
                self.round = max(self.round + 1, int((at_s - start_s) / interval_s))
            if self.there and (tick or ((arrived or ended) and not self.rounds)):
                self.ended, self.arrived = False, frozenset()
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
            self.outcomes[job.id] = JobOutcome(job, None, None, None, 0, self.world.reference_rate(job), ())
        found = tuple(self.outcomes[job.id] for job in self.coming)
        return Outcome(self.policy.name, found, levels(found), end_s, self.decisions)

    def _next(self, start_s: float) -> float | None:
        """Return the time of the next event, None if there will be none."""
        while self.ends and not self._current(self.ends[0]):
            heapq.heappop(self.ends)
        times = [self.ends[0][0]] if self.ends else []
        if self.next < len(self.coming):
            times.append(self.coming[self.next].submit_s)
        # a policy that leaves everything idle with nothing to come is asked some more times before the end
        if self.there and self.policy.interval_s is not None and (times or self.idle_rounds < 1000):
            times.append(start_s + self.round * self.policy.interval_s)
        return min(times, default=None)

    def _current(self, end: tuple[float, int, str, int]) -> bool:
        """Whether an end on the heap is still valid."""
        one = self.there.get(end[2])
        return one is not None and one.version == end[3]

    def _end(self) -> bool:
        """Remove the jobs that end now; return whether there are any."""
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
        """Add the jobs that arrive now; return their ids."""
        arrived = []
        while self.next < len(self.coming) and self.coming[self.next].submit_s <= self.now_s:
            job = self.coming[self.next]
            self.there[job.id] = _Job(job, self.next, self.world.reference_rate(job), job.iterations)
            arrived.append(job.id)
            self.next += 1
        return frozenset(arrived)

    def _decide(self, arrived: frozenset[str], ended: bool) -> bool:
        """Ask the policy and apply its decision; return whether a job was dropped or starts for the first time."""
        running, waiting = [], []
        for one in self.there.values():
            if one.held is not None:
                running.append(Running(one.job, one.held, one.from_s, one.remaining(self.now_s)))
            else:
                if one.waiting is None:
                    one.waiting = Waiting(one.job, one.left)
                waiting.append(one.waiting)
        self.decisions += 1
        capacity = dict(self.world.capacity)
        decision = self.policy.decide(Moment(self.now_s, running, waiting, capacity, arrived, ended))
        changed = self._changed(decision)
        for id in decision.dropped:
            one = self.there.pop(id)
            one.release(self.now_s)
            self.outcomes[id] = one.outcome(dropped_s=self.now_s)
        # GPUs are given back before other jobs get them
        for one in self.there.values():
            if one.held is not None and one.job.id not in decision.allocations:
                one.release(self.now_s)
        new = bool(decision.dropped)
        for id, (allocation, rate) in changed.items():
            one = self.there[id]
            restarts = one.ran and (one.held is None or self.world.moves(one.held, allocation))
            one.release(self.now_s)
            new = new or one.start_s is None
            self._give(one, allocation, rate, restarts=restarts)
        return new

    def _give(self, one: _Job[A], allocation: A, rate: float, *, restarts: bool) -> None:
        """Give a job an allocation from now on, and schedule its end."""
        if one.start_s is None:
            one.start_s = self.now_s
        one.restarts += restarts
        one.held, one.ran, one.rate, one.waiting = allocation, True, rate, None
        one.from_s = self.now_s
        # a change without a restart does not cut short a running restart
        one.ready_s = self.now_s + self.restart_s if restarts else max(self.now_s, one.ready_s)
        one.version += 1
        heapq.heappush(self.ends, (one.ready_s + one.left / rate, one.order, one.job.id, one.version))

    def _changed(self, decision: Decision[A]) -> dict[str, tuple[A, float]]:
        """Return the new allocations of a decision, with the true rates; raise BrokenRule if it is invalid."""
        changed = {}
        try:
            for id, allocation in decision.allocations.items():
                one = self.there.get(id)
                if one is None or id in decision.dropped:
                    raise CannotGive(f"gives GPUs to {id!r}, which is {'dropped' if one else 'not there'}")
                if one.held != allocation:
                    changed[id] = (allocation, self.world.rate(one.job, allocation))
            if changed:
                self.world.check(decision.allocations)
            if missing := decision.dropped - self.there.keys():
                raise CannotGive(f"drops {min(missing)!r}, which is not there")
        except CannotGive as why:
            raise BrokenRule(f"{self.policy.name} {why} (at {self.now_s:.0f} s)") from None
        return changed


def _check(jobs: Sequence[SimulatedJob], restart_s: float) -> None:
    """Refuse jobs and times that are invalid in any world."""
    seen = set()
    for job in jobs:
        if job.id in seen:
            raise UsageError(f"two jobs are called {job.id!r}: give each an id of its own")
        seen.add(job.id)
        if not (0 < job.iterations < float("inf") and abs(job.submit_s) < float("inf")):
            raise UsageError(f"job {job.id!r} has {job.iterations} iterations at {job.submit_s} s: give finite numbers")
    if not 0 <= restart_s < float("inf"):
        raise UsageError(f"a restart cannot take {restart_s} s: give 0 or more")
