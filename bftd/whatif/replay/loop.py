"""The replay itself: trace, arrivals and completions in order of time, each put to the core."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from bftd.errors import UsageError
from bftd.protocol.registration import Registration
from bftd.simulated import measured
from bftd.simulated.crew import Crew, registration
from bftd.simulated.trainers import SimTrainer
from bftd.whatif.replay import scavenger
from bftd.whatif.replay.account import Account, Charge
from bftd.whatif.replay.backlog import Backlog
from bftd.whatif.replay.options import Options
from bftd.whatif.replay.planner import Planner
from bftd.whatif.replay.result import Result, made_of
from bftd.whatif.replay.site import Moves, Site, settings

if TYPE_CHECKING:
    from bftd.whatif.trace import Change, Trace

# Two events that are less apart are one: completion times come out of divisions.
_INSTANT_S = 1e-6


def run(
    trace: Trace,
    trainers: Sequence[SimTrainer],
    options: Options | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Replay a trace with simulated trainers; `progress` hears now and then which part of it is done, in 0..1.

    Raises `UsageError` where there is nothing to replay.
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
        replay = _Replay(charged, options)
        account, solve_s = replay.through(trace, progress), replay.planner.solve_s
    return made_of(account, trace, trainers, options, solve_s, started_s)


def _scavenged(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options, progress: Callable[[float], None] | None
) -> tuple[Account, Options]:
    """The books of rigid jobs, of the best size where none is asked for, and the options with the size."""
    if options.scavenger_nodes is not None:
        return scavenger.replay(trace, trainers, options, progress), options
    whole = np.array([0.0, trace.duration_s])
    tried = [replace(options, scavenger_nodes=size) for size in scavenger.sizes(trainers)]
    found = [(scavenger.replay(trace, trainers, each, progress), each) for each in tried]
    return max(found, key=lambda pair: float(pair[0].outcome(whole)[0]))


def _costing(trainer: SimTrainer, options: Options) -> SimTrainer:
    """The trainer with the rescale costs that are asked for."""
    up_s, down_s = trainer.up_cost_s, trainer.down_cost_s
    if options.rescale_model == "measured":
        up_s, down_s = measured.UP_STALL_S, measured.DOWN_STALL_S
    factor = options.cost_multiplier
    return replace(trainer, up_cost_s=up_s * factor, down_cost_s=down_s * factor)


class _Replay:
    """The state of a replay between two events."""

    def __init__(self, trainers: Sequence[SimTrainer], options: Options) -> None:
        self.options = options
        self.mends = options.mended
        self.account = Account()
        self.planner = Planner(
            paper_big_m=not self.mends.right_big_m,
            startup_charge=self.mends.startup_charge and options.rescale_model == "paper",
        )
        solver = "equal-share" if options.policy == "equal-share" else options.solver
        objective = "efficiency" if options.objective == "efficiency" else "throughput"
        self.site = Site(
            settings(t_fwd_s=options.t_fwd_s, pj_max=options.pj_max, objective=objective, solver=solver), self.planner
        )
        self.backlog = Backlog(trainers, endless=options.endless)
        self.warm_up_s = measured.WARM_UP_S * options.cost_multiplier if options.rescale_model == "measured" else 0.0
        # In order of arrival: those that the core considers, and those that wait for one of them to be done.
        self.crews: dict[str, Crew] = {}
        self.waiting: deque[SimTrainer] = deque()
        self.used = 0

    def through(self, trace: Trace, progress: Callable[[float], None] | None) -> Account:
        """Replay it all."""
        changes = trace.changes()
        change: Change | None = next(changes, None)
        end_s, now_s, heard = trace.duration_s, 0.0, 0
        while now_s < end_s:
            due = change if change is not None and change.time_s <= now_s + _INSTANT_S else None
            if due is not None:
                now_s, change = max(now_s, due.time_s), next(changes, None)
            self._instant(now_s, due)
            heard += 1
            if progress is not None and heard % 200 == 0:
                progress(now_s / end_s)
            now_s = self._next(change.time_s if change is not None else inf, now_s)
        self._close(end_s)
        return self.account

    def _next(self, change_s: float, now_s: float) -> float:
        """When something happens next."""
        at_s = change_s
        if self.mends.completion_events:
            at_s = min(at_s, self.backlog.next_s, *(crew.done_s for crew in self.crews.values()))
        if self.warm_up_s:
            at_s = min(at_s, *(ready_s for crew in self.crews.values() for ready_s in crew.warming.values()), inf)
        return max(at_s, now_s)

    def _instant(self, now_s: float, change: Change | None) -> None:
        """All that happens at `now_s`."""
        if self.warm_up_s:
            self._join_warm(now_s)
        # Who is done at this very moment loses nothing by it; but the reference looks only after the loss.
        done = self._complete_all(now_s) if self.mends.completion_events else []
        left = change.left if change is not None else ()
        if change is not None:
            self._lose(now_s, self.site.change_pool(change.joined, left))
        if not self.mends.completion_events:
            done = self._complete_all(now_s)
        admitted = self._admitted(now_s)
        self.crews |= {spec.name: Crew(spec, now_s) for spec in admitted}
        if change is not None or done or admitted or not self.account.decided_s:
            registered = [self._registered(spec) for spec in admitted]
            works_at_once = not self.warm_up_s
            moves = self.site.decide(now_s, lost=left, finished=done, admitted=registered, works_at_once=works_at_once)
            self.account.decided_s.append(now_s)
            self._resize(now_s, moves)
        rate = sum(crew.rate for crew in self.crews.values())
        self.account.note(now_s, rate, self.site.pool_size, self.used)

    def _admitted(self, now_s: float) -> list[SimTrainer]:
        """Who comes into play now: the core considers pj_max trainers, and those behind them are no event to it."""
        free = self.options.pj_max - len(self.crews)
        self.waiting.extend(self.backlog.arrived(now_s, spare=free - len(self.waiting)))
        return [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]

    def _done(self, now_s: float) -> list[str]:
        return [name for name, crew in self.crews.items() if crew.done_s <= now_s + _INSTANT_S]

    def _lose(self, now_s: float, lost: dict[str, list[str]]) -> None:
        """Nodes left the pool: once per trainer R_dw is lost, at the rate that it had."""
        hit = [(self.crews[name], nodes) for name, nodes in lost.items() if name in self.crews]
        if hit:
            self.account.preempted_s.append(now_s)
            self.account.preemptions += len(hit)
        for crew, nodes in hit:
            before = crew.working
            self._drop(now_s, crew, nodes)
            if crew.working < before:
                self._charge(now_s, crew, "preempt", crew.spec.down_cost_s)
            crew.pace()

    def _drop(self, now_s: float, crew: Crew, nodes: Sequence[str]) -> None:
        crew.advance(now_s)
        crew.held -= len(nodes)
        self.used -= len(nodes)
        for node in nodes:
            crew.warming.pop(node, None)

    def _complete_all(self, now_s: float) -> list[str]:
        """Take out who is done."""
        done = self._done(now_s)
        for name in done:
            self._complete(now_s, self.crews.pop(name))
        return done

    def _complete(self, now_s: float, crew: Crew) -> None:
        crew.advance(now_s)
        self.used -= crew.held
        self.account.take_off(now_s, "overshoot", crew.overshoot)
        self.account.completed(crew.spec, now_s - crew.admitted_s)

    def _resize(self, now_s: float, moves: Moves) -> None:
        """Carry out the plan, and charge each trainer that it resizes: equation (13)."""
        for name, nodes in moves.taken.items():
            crew = self.crews[name]
            before = crew.working
            self._drop(now_s, crew, nodes)
            if crew.working < before:
                self._charge(now_s, crew, "rescale", crew.spec.down_cost_s)
            crew.pace()
        for name, nodes in moves.given.items():
            crew = self.crews[name]
            crew.advance(now_s)
            crew.held += len(nodes)
            self.used += len(nodes)
            if self.warm_up_s:
                crew.warming |= dict.fromkeys(nodes, now_s + self.warm_up_s)
            else:
                self._grow(now_s, crew)

    def _grow(self, now_s: float, crew: Crew) -> None:
        """More nodes work from now on; a start from nothing costs R_up at the new rate, where that is charged."""
        from_nothing = crew.rate == 0.0
        if not from_nothing:
            self._charge(now_s, crew, "rescale", crew.spec.up_cost_s)
        crew.pace()
        if from_nothing and self.mends.startup_charge and not self.warm_up_s:
            self._charge(now_s, crew, "rescale", crew.spec.up_cost_s)

    def _join_warm(self, now_s: float) -> None:
        """Nodes that are warm take part; while they warmed up, the others went on."""
        for name, crew in self.crews.items():
            ready = [node for node, ready_s in crew.warming.items() if ready_s <= now_s + _INSTANT_S]
            if ready:
                crew.advance(now_s)
                for node in ready:
                    del crew.warming[node]
                self._grow(now_s, crew)
                self.site.report_working(now_s, name, ready)

    def _charge(self, now_s: float, crew: Crew, charge: Charge, stall_s: float) -> None:
        """The trainer stands still for `stall_s` at its present rate."""
        samples = crew.rate * stall_s
        crew.samples -= samples
        self.account.take_off(now_s, charge, samples)

    def _registered(self, spec: SimTrainer) -> Registration:
        points = spec.objective if self.options.objective == "curve" else spec.curve
        return registration(spec, points, self.warm_up_s, id_=spec.name, name=spec.name, user="replay")

    def _close(self, end_s: float) -> None:
        """The end of the trace: work past a trainer's end does not count."""
        for name in self._done(end_s):
            crew = self.crews.pop(name)
            self._complete(max(crew.since_s, end_s), crew)
        for crew in self.crews.values():
            crew.advance(end_s)
            self.account.earned[crew.spec.name] = crew.samples
