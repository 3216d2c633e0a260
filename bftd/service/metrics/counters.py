"""Measurements of events as they happen: counters and histograms of the client library, in a separate registry.

All labels have values from the code. Values from drivers are bounded before they are counted, so that no driver can
spoil the totals of others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics

from bftd.core.model.domain import Action, CancelPilot, Happened, Lease, LeaseChanged, SolverFailed, State
from bftd.core.model.events import (
    ClockSet,
    Configured,
    Event,
    Finished,
    Heard,
    PoolObserved,
    Registered,
    Reported,
    Tick,
)
from bftd.core.model.pause import Paused, Unpaused
from bftd.service.instrumentation import Meters
from bftd.service.metrics.give_back import Handovers

log = logging.getLogger("bftd")

# The most that one report of a driver may add: nobody can make a sum meaningless.
STALL_MOST_S = 86_400.0
STEPS_LOST_MOST = 10**6
EVENTS: Mapping[type, str] = {
    PoolObserved: "pool",
    Tick: "tick",
    ClockSet: "clock_set",
    Configured: "configured",
    Registered: "registered",
    Heard: "heard",
    Reported: "reported",
    Finished: "finished",
    Paused: "paused",
    Unpaused: "resumed",
}
ENGINES = ("gurobi", "highs")
LEASE_CHANGES = ("granted", "revoked", "adopted", "ended")
RESIZES = ("up", "down", "crash")
# The ways in which a Slurm command can fail.
FAILURES = ("failed", "unanswered", "not_run")
RESULTS = ("good", "none")
_STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
# The bounds of the histograms' buckets: each resolves the usual durations, and also covers excessive ones.
# Slurm commands and snapshots: milliseconds on an idle controller, up to the time-out.
_SLURM_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# A decision takes milliseconds; a mixed-integer program, or thousands of trainers, up to seconds.
_DECISION_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# An agent leaves within 0.12 s of Slurm's notice; a node that is still held after some seconds is an alarm.
_GIVE_BACK_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
# A regular job starts in Slurm's next cycle: after a second to some minutes.
_START_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# A resize stops training for a second or two, or longer if a large checkpoint is stored and loaded.
_STALL_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# Creation times of each counter would double the series, and say no more than the process's start time.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Counters(Meters):
    """Counters and timers of what a service reports; `registry` holds the metrics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._clock = clock
        self._good_s = clock()
        self._handovers = Handovers()
        self._complained = False
        self._make_slurm()
        self._make_decisions()
        self._make_nodes()
        self._make_trainers()
        self._requests = self._counter("api_requests", "Requests answered by the API.", "method", "route", "code")

    @property
    def snapshot_age_s(self) -> float:
        """The seconds since Slurm was last read well, or since this was made; by a clock that nobody sets."""
        return self._clock() - self._good_s

    def _make_slurm(self) -> None:
        self._command_s = self._histogram(
            "slurm_command_duration_seconds", "Time that commands of Slurm took.", _SLURM_S, "command"
        )
        self._command_errors = self._counter(
            "slurm_command_errors", "Commands of Slurm that failed, were not answered or not run.", "command", "outcome"
        )
        self._snapshots = self._counter("snapshots", "Looks at Slurm, by whether there was a good snapshot.", "result")
        self._read_s = self._histogram(
            "snapshot_read_duration_seconds", "Time to read a snapshot of Slurm, parsing included.", _SLURM_S
        )
        self._tick_s = self._histogram(
            "tick_duration_seconds", "Time that the daemon took to take a snapshot in, decision included.",
            _DECISION_S,
        )  # fmt: skip
        for result in RESULTS:
            self._snapshots.labels(result)
        for command in ("scontrol", "squeue", "scancel"):
            self._command_s.labels(command)
            for outcome in FAILURES:
                self._command_errors.labels(command, outcome)

    def _make_decisions(self) -> None:
        self._events = self._counter("events", "Events that the decision core took in.", "event")
        self._decision_s = self._histogram(
            "decision_duration_seconds", "Time of a step of the core that made a plan.", _DECISION_S
        )
        self._solve_s = self._histogram(
            "solve_duration_seconds", "Time to solve the allocation problem, check included.", _DECISION_S,
            "solver", "status",
        )  # fmt: skip
        self._failures = self._counter("solver_failures", "Plans that could not be made: the map stayed as it was.")
        self._distrusted = self._counter(
            "solver_distrusted", "Solutions that are worth something else than the engine said, and not believed.",
            "engine",
        )  # fmt: skip
        for name in EVENTS.values():
            self._events.labels(name)
        for name in ENGINES:
            self._distrusted.labels(name)

    def _make_nodes(self) -> None:
        self._leases = self._counter("lease_changes", "Leases granted, revoked, adopted and ended.", "change")
        self._give_back_s = self._histogram(
            "give_back_duration_seconds", "Time from a node being asked back until its pilot was gone.",
            _GIVE_BACK_S,
        )  # fmt: skip
        self._late = self._counter("give_backs_late", "Nodes given back later than give_back_bound_s.")
        self._overdue = self._counter("give_backs_overdue", "Nodes still held when give_back_bound_s was over.")
        self._handover_s = self._histogram(
            "handover_duration_seconds",
            "Time from a node being asked back for regular work until a regular job was seen on it.", _START_S,
        )  # fmt: skip
        self._earmark_s = self._histogram(
            "earmark_start_duration_seconds",
            "Time from nodes being earmarked for a waiting job until it was seen to have started.", _START_S,
        )  # fmt: skip
        self._earmark_old_s = self._histogram(
            "room_start_duration_seconds",
            "Old name of bftd_earmark_start_duration_seconds, until 1.1.", _START_S,
        )  # fmt: skip
        self._cancelled = self._counter("cancelled_jobs", "Orders to Slurm to cancel a job.", "whose")
        for change in LEASE_CHANGES:
            self._leases.labels(change)
        for whose in ("trainer", "stray"):  # stray: an orphan job, until 1.1
            self._cancelled.labels(whose)

    def _make_trainers(self) -> None:
        self._resizes = self._counter("resizes", "Resizes of trainers.", "kind")
        self._stall_s = self._histogram(
            "resize_stall_seconds", "Time for which training stood still at a resize.", _STALL_S, "kind"
        )
        self._steps_lost = self._counter("steps_lost", "Training steps done again after nodes were lost.")
        self._suspends = self._counter("suspends", "Trainers suspended to disk.")
        self._crashes = self._counter("crashes", "Workers that ended by themselves.")
        self._finished = self._counter("finished_trainers", "Trainers that ended.", "result")
        for kind in RESIZES:
            self._resizes.labels(kind)
            self._stall_s.labels(kind)
        for result in ("completed", "failed", "lost"):
            self._finished.labels(result)

    def stepped(
        self, before: State, after: State, events: Sequence[Event], actions: Sequence[Action], took_s: float
    ) -> None:
        """See Meters; a failure here does not disturb the service that is measured."""
        try:
            self._stepped(before, after, events, actions, took_s)
        except Exception:
            if not self._complained:
                log.exception("a step could not be measured: metrics lack it and the like")
            self._complained = True

    def _stepped(
        self, before: State, after: State, events: Sequence[Event], actions: Sequence[Action], took_s: float
    ) -> None:
        for event in events:
            self._events.labels(EVENTS[type(event)]).inc()
            if isinstance(event, ClockSet):
                self._handovers.move(event.by_s)
            elif isinstance(event, Reported) and event.trainer in after.trainers:
                self._count_lost_steps(before, after, event.trainer)
        if after.planned is not before.planned:
            self._decision_s.observe(took_s)
        for action in actions:
            if isinstance(action, LeaseChanged):
                self._leases.labels(action.kind).inc()
                lease = action.lease
                if action.kind == "granted":
                    self._handovers.end(lease.node)
                elif action.kind == "revoked" and lease.observed and _for_regular_work(lease, after):
                    self._handovers.begin(lease.node, lease.asked_back_s or after.time_s)
            elif isinstance(action, Happened):
                self._happened(action.kind, action.data, after)
            elif isinstance(action, CancelPilot):
                self._cancelled.labels("stray" if action.trainer is None else "trainer").inc()
            elif isinstance(action, SolverFailed):
                self._failures.inc()
        if after.pool is not before.pool and after.pool.seen:
            leased = (lease.node for lease in after.leases.values())
            for seconds in self._handovers.seen(after.pool.nodes, leased, after.pool.time_s):
                self._handover_s.observe(seconds)

    def _happened(self, kind: str, data: Mapping[str, Any], after: State) -> None:
        if kind == "give_back":
            self._give_back_s.observe(data["duration_s"])
            if data["duration_s"] > after.settings.pool.give_back_bound_s:
                self._late.inc()
        elif kind == "alarm" and "overdue_s" in data:
            self._overdue.inc()
        elif kind == "earmark_over" and data["end"] == "started":
            for histogram in (self._earmark_s, self._earmark_old_s):
                histogram.observe(data["duration_s"])
        elif kind == "resize" and data["kind"] in RESIZES:
            self._resizes.labels(data["kind"]).inc()
            if (stall_s := data.get("stall_s")) is not None:
                self._stall_s.labels(data["kind"]).observe(min(stall_s, STALL_MOST_S))
        elif kind == "suspend":
            self._suspends.inc()
        elif kind == "crash":
            self._crashes.inc()
        elif kind == "finished":
            code = data["exit_code"]
            self._finished.labels("lost" if code is None else "failed" if code else "completed").inc()

    def _count_lost_steps(self, before: State, after: State, trainer: str) -> None:
        known = before.trainers.get(trainer)
        lost = after.trainers[trainer].steps_lost - (known.steps_lost if known is not None else 0)
        if lost > 0:
            self._steps_lost.inc(min(lost, STEPS_LOST_MOST))

    def solved(self, solver: str, status: str, took_s: float) -> None:
        """See Meters."""
        self._solve_s.labels(solver, status).observe(took_s)

    def distrusted(self, engine: str) -> None:
        """See Meters."""
        self._distrusted.labels(engine).inc()

    def snapshot(self, read_s: float, taken_in_s: float | None) -> None:
        """See Meters."""
        self._read_s.observe(read_s)
        self._snapshots.labels("none" if taken_in_s is None else "good").inc()
        if taken_in_s is not None:
            self._tick_s.observe(taken_in_s)
            self._good_s = self._clock()

    def slurm_called(self, command: str, outcome: str, took_s: float) -> None:
        """See Meters."""
        self._command_s.labels(command).observe(took_s)
        if outcome != "ok":
            self._command_errors.labels(command, outcome).inc()

    def answered(self, method: str, route: str, status: int) -> None:
        """See Meters; all requests without a route are counted as one, whatever their path."""
        code = _STATUSES[min(max(status // 100, 1), len(_STATUSES)) - 1]
        self._requests.labels(method if route else "other", route or "other", code).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"bftd_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"bftd_{name}", f"{text[:-1]}, in seconds.", labels, registry=self.registry, buckets=bounds)


def _for_regular_work(lease: Lease, state: State) -> bool:
    """Whether a node is asked back for a regular job, by Slurm or before it asks, and not for a pause, for example."""
    node = state.pool.nodes.get(lease.node)
    return lease.vacate and (lease.leaving_s is not None or (node is not None and node.wanted))
