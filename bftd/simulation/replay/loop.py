"""The replay itself: trace, arrivals and completions in order of time, each passed to the core."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from bftd.base.errors import UsageError
from bftd.core.model.events import Event, Registered
from bftd.protocol.registration import Registration
from bftd.simulation.drivers import resize_costs
from bftd.simulation.drivers.driver import Drivers, Terms, registration
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay import scavenger
from bftd.simulation.replay.account import Account
from bftd.simulation.replay.backlog import Backlog
from bftd.simulation.replay.cluster import SimulatedCluster, settings
from bftd.simulation.replay.options import Options
from bftd.simulation.replay.planner import TimedPlanner
from bftd.simulation.replay.result import Result, made_of

if TYPE_CHECKING:
    from bftd.simulation.trace import Change, Trace

# Events closer than this count as simultaneous: completion times are results of divisions.
_INSTANT_S = 1e-6
# Events between two progress reports: on a large cluster each event takes some milliseconds.
_PROGRESS_EVERY = 20


def run(
    trace: Trace,
    trainers: Sequence[SimTrainer],
    options: Options | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Replay a trace with simulated trainers; `progress` is called now and then with the fraction done, in 0..1.

    Raise `UsageError` if there is no trainer to replay.
    """
    options = options or Options()
    if not trainers:
        raise UsageError("there is no trainer to replay: name at least one")
    started_s = time.perf_counter()
    if options.nodes is not None:
        trace = trace.select(options.nodes)
    if options.hours is not None:
        trace = trace.first(options.hours)
    charged = [_costing(trainer, options) for trainer in trainers]
    if options.policy == "scavenger":
        account, options = _scavenged(trace, charged, options, progress)
        solve_s: list[float] = []
    else:
        replay = Replay(charged, options)
        account, solve_s = replay.through(trace, progress), replay.planner.solve_s
    return made_of(account, trace, trainers, options, solve_s, started_s)


def _scavenged(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options, progress: Callable[[float], None] | None
) -> tuple[Account, Options]:
    """Return the books of rigid jobs, of the best size if none is asked for, and the options with that size."""
    if options.scavenger_nodes is not None:
        return scavenger.replay(trace, trainers, options, progress), options
    whole = np.array([0.0, trace.duration_s])
    tried = [replace(options, scavenger_nodes=size) for size in scavenger.sizes(trainers)]
    found = [(scavenger.replay(trace, trainers, each, progress), each) for each in tried]
    return max(found, key=lambda pair: float(pair[0].outcome(whole)[0]))


def _costing(trainer: SimTrainer, options: Options) -> SimTrainer:
    """Return the trainer with the requested rescale costs."""
    up_s, down_s = trainer.up_cost_s, trainer.down_cost_s
    if options.rescale_model == "measured":
        up_s, down_s = resize_costs.UP_STALL_S, resize_costs.DOWN_STALL_S
    factor = options.cost_multiplier
    return replace(trainer, up_cost_s=up_s * factor, down_cost_s=down_s * factor)


class Replay:
    """The state of a replay between two events: the clock and the backlog, around the cluster and the books."""

    def __init__(self, trainers: Sequence[SimTrainer], options: Options) -> None:
        self.options = options
        self.mends = options.mended
        self.account = Account()
        warm_up_s = options.warm_up_s
        if options.rescale_model == "measured":
            warm_up_s = resize_costs.WARM_UP_S * options.cost_multiplier
        self.planner = TimedPlanner(
            paper_big_m=not self.mends.right_big_m, startup_charge=self.mends.startup_charge and not warm_up_s
        )
        self.terms = Terms(
            warm_up_s=warm_up_s,
            startup_charge=self.mends.startup_charge and not warm_up_s,
            instant_s=_INSTANT_S,
        )
        self.drivers = Drivers(self.terms, self.account)
        solver = "equal-share" if options.policy == "equal-share" else options.solver
        objective = "efficiency" if options.objective == "efficiency" else "throughput"
        self.cluster = SimulatedCluster(
            settings(
                t_fwd_s=options.t_fwd_s,
                pj_max=options.pj_max,
                objective=objective,
                solver=solver,
                max_nodes=options.max_nodes,
                favour_waiting=options.objective != "curve",
            ),
            self.planner,
            self.drivers,
        )
        self.backlog = Backlog(trainers, endless=options.endless)
        # trainers waiting for a place among those the core considers, in order of arrival
        self.waiting: deque[SimTrainer] = deque()

    def through(self, trace: Trace, progress: Callable[[float], None] | None) -> Account:
        """Replay the whole trace."""
        changes = trace.changes()
        change: Change | None = next(changes, None)
        end_s, now_s, heard = trace.duration_s, 0.0, 0
        while now_s < end_s:
            due = change if change is not None and change.time_s <= now_s + _INSTANT_S else None
            if due is not None:
                now_s, change = max(now_s, due.time_s), next(changes, None)
            self._instant(now_s, due)
            heard += 1
            if progress is not None and heard % _PROGRESS_EVERY == 0:
                progress(now_s / end_s)
            now_s = self._next(change.time_s if change is not None else inf, now_s)
        self._close(end_s)
        return self.account

    def _next(self, change_s: float, now_s: float) -> float:
        """Return the time of the next event."""
        at_s, in_play = change_s, self.drivers.in_play.values()
        if self.mends.completion_events:
            at_s = min(at_s, self.backlog.next_s, *(driver.done_s for driver in in_play))
        if self.terms.warm_up_s:
            at_s = min(at_s, *(ready_s for driver in in_play for ready_s in driver.warming.values()), inf)
        return max(at_s, now_s)

    def _instant(self, now_s: float, change: Change | None) -> None:
        """Handle all events at `now_s`."""
        if self.terms.warm_up_s and (warm := self.drivers.warm(now_s)):
            self.cluster.apply(warm)
        # A trainer done at this very moment loses nothing by the change; the reference checks only after the loss.
        events = self._complete(now_s) if self.mends.completion_events else []
        if change is not None:
            self.cluster.change_pool(change.joined, change.left)
            events += self._lose(now_s, change.left)
        if not self.mends.completion_events:
            events += self._complete(now_s)
        events += self._admit(now_s)
        if change is not None or events or not self.account.decided_s:
            self.account.decided_s.append(now_s)
            self.cluster.decide(now_s, events)
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        """Record the state from now on."""
        drivers = self.drivers
        self.account.note(now_s, drivers.rate, self.cluster.pool_size, len(drivers.holders), drivers.training)

    def _admit(self, now_s: float) -> list[Event]:
        """Admit arriving trainers: the core considers pj_max trainers, and those behind them are no event to it."""
        free = self.options.pj_max - len(self.drivers.in_play)
        self.waiting.extend(self.backlog.arrived(now_s, spare=free - len(self.waiting)))
        admitted = [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
        for spec in admitted:
            self.drivers.add(spec.name, spec, now_s)
        return [Registered(now_s, self._registration(spec)) for spec in admitted]

    def _lose(self, now_s: float, nodes: Sequence[str]) -> list[Event]:
        """Take the nodes that left the pool from the trainers, and count each trainer that lost some once."""
        reports = self.drivers.lose(nodes, now_s)
        if reports:
            self.account.preempted_s.append(now_s)
            self.account.preemptions += len(reports)
        return reports

    def _complete(self, now_s: float) -> list[Event]:
        """Remove the trainers that are done."""
        events: list[Event] = []
        for driver in self.drivers.done(now_s):
            events += self.drivers.finish(driver, max(driver.since_s, now_s))
            self.account.completed(driver.spec, driver.since_s - driver.admitted_s)
        return events

    def _registration(self, spec: SimTrainer) -> Registration:
        points = spec.objective if self.options.objective == "curve" else spec.curve
        return registration(spec, points, self.terms.warm_up_s, id_=spec.name, name=spec.name, user="replay")

    def _close(self, end_s: float) -> None:
        """Finish the trace: work past a trainer's end does not count."""
        self._complete(end_s)
        for driver in self.drivers.in_play.values():
            driver.advance(end_s)
            self.account.earned[driver.spec.name] = driver.samples
