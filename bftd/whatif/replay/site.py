"""A simulated site around the daemon's own core: a pool that changes, and drivers that obey within the instant."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import nextafter

from bftd.core.domain import (
    Action,
    Event,
    Finished,
    Lease,
    LeaseChanged,
    PoolNode,
    PoolObserved,
    PoolView,
    Registered,
    Reported,
    Settings,
    SolverFailed,
    State,
)
from bftd.core.step import fold
from bftd.errors import BftError
from bftd.protocol.lease import LeaseState, Phase
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport, Report
from bftd.whatif.replay.planner import Planner

# A simulated site has no limit on submissions, no stale snapshot and pilots without end: the plan alone decides.
_NEVER_S = 1e12
_NO_LIMIT = 10**9


def settings(*, t_fwd_s: float, pj_max: int, objective: str, solver: str) -> Settings:
    """The core's settings on a site where nothing but the plan limits anything."""
    return Settings(
        t_fwd_s=t_fwd_s,
        objective=objective,
        pj_max=pj_max,
        solver=solver,
        solve_time_limit_s=60.0,
        stale_after_s=_NEVER_S,
        pilot_limit_s=_NEVER_S,
        give_back_bound_s=_NEVER_S,
        submit_rate_per_min=_NO_LIMIT,
    )


@dataclass
class Moves:
    """What one decision did: nodes given to and taken from trainers, by trainer."""

    given: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


class Site:
    """The core with its pool of simulated nodes; `owner` tells which trainer holds a node."""

    def __init__(self, settings: Settings, planner: Planner) -> None:
        self.state = State(settings=settings)
        self.owner: dict[str, str] = {}
        self._planner = planner
        # In the core's order of preference, so that it has nothing to sort.
        self._names: list[tuple[int, str]] = []
        self._nodes: dict[str, PoolNode] = {}
        self._version = 0
        self._viewed_s = -1.0
        self._leases: dict[str, str] = {}
        self._pilots: dict[str, str] = {}
        self._warming: set[str] = set()
        self._jobs: frozenset[str] = frozenset()

    @property
    def pool_size(self) -> int:
        """How many nodes are idle."""
        return len(self._names)

    def change_pool(self, joined: Iterable[str], left: Collection[str]) -> dict[str, list[str]]:
        """Let nodes join and leave; returns the nodes that each trainer lost. The core hears of it in `decide`."""
        for name in left:
            key = (len(name), name)
            del self._names[bisect_left(self._names, key)]
        for name in joined:
            insort(self._names, (len(name), name))
        self._version += 1
        ready = self._nodes
        self._nodes = {
            name: ready.get(name) or PoolNode(name, state="IDLE", in_pool=True, why="") for _, name in self._names
        }
        lost: dict[str, list[str]] = defaultdict(list)
        for name in left:
            if name in self.owner:
                lost[self.owner[name]].append(name)
        return lost

    def decide(
        self,
        time_s: float,
        *,
        lost: Collection[str] = (),
        finished: Sequence[str] = (),
        admitted: Sequence[Registration] = (),
        works_at_once: bool = True,
    ) -> Moves:
        """Tell the core what happened, and carry out what it decides; `lost` are nodes that left the pool.

        All is folded before the core plans. Nodes given are reported as placed and, with `works_at_once`, as working.
        """
        events: list[Event] = self._ended(time_s, [name for name in lost if name in self.owner])
        for trainer in finished:
            events.append(Finished(time_s, trainer, exit_code=0, reason=""))
            events += self._ended(time_s, [name for name, owner in self.owner.items() if owner == trainer])
        events += [Registered(time_s, request) for request in admitted]
        self._jobs = self._jobs.difference(finished).union(request.id for request in admitted)
        moves = Moves()
        phase: Phase = "working" if works_at_once else "placed"
        reports = self._advance(time_s, [*events, self._observed(time_s)], moves, phase)
        if moves.taken and self._to_settle():
            self._planner.settling = self.state.planned.assignment
            reports = self._advance(time_s, [*reports, self._observed(time_s)], moves, phase)
            self._planner.settling = None
        if reports:
            self._advance(time_s, reports, moves, phase)
        return moves

    def report_working(self, time_s: float, trainer: str, nodes: Sequence[str]) -> None:
        """Tell the core that nodes of a trainer take part in training from now on."""
        self._warming.difference_update(nodes)
        reports = tuple(_report(self._leases[node], "working", time_s) for node in nodes)
        self.state, _ = fold(self.state, (Reported(time_s, trainer, reports),), self._planner, explain=False)

    def _observed(self, time_s: float) -> PoolObserved:
        self._viewed_s = max(time_s, nextafter(self._viewed_s, _NEVER_S))
        view = PoolView(
            version=self._version,
            time_s=self._viewed_s,
            nodes=self._nodes,
            pilots=self._pilots.copy(),
            job_ids=self._jobs,
        )
        return PoolObserved(self._viewed_s, view)

    def _advance(self, time_s: float, events: Sequence[Event], moves: Moves, phase: Phase) -> list[Event]:
        """Fold events into the core, obey its actions, and return what the drivers have to report on them."""
        self.state, actions = fold(self.state, events, self._planner, explain=False)
        return self._obey(time_s, actions, moves, phase)

    def _obey(self, time_s: float, actions: Iterable[Action], moves: Moves, phase: Phase) -> list[Event]:
        reports: dict[str, list[Report]] = defaultdict(list)
        for action in actions:
            if isinstance(action, SolverFailed):  # the daemon would go on with the map that it has, a replay must not
                raise BftError(f"no plan at {time_s:g} s of the trace: {action.error}")
            if not isinstance(action, LeaseChanged):
                continue
            lease = action.lease
            if action.kind == "granted":
                self._take(lease)
                if phase != "working":
                    self._warming.add(lease.node)
                moves.given[lease.trainer].append(lease.node)
                reports[lease.trainer].append(_report(lease.id, phase, time_s))
            elif action.kind == "revoked" and self._leases.get(lease.node) == lease.id:
                self._leave(lease.node)
                moves.taken[lease.trainer].append(lease.node)
                reports[lease.trainer].append(_report(lease.id, "ended", time_s))
        return [Reported(time_s, trainer, tuple(told)) for trainer, told in reports.items()]

    def _to_settle(self) -> bool:
        """Whether nodes are planned for somebody who could not have them yet."""
        return any(
            self.owner.get(node) != trainer
            for trainer, nodes in self.state.planned.assignment.items()
            for node in nodes
        )

    def _ended(self, time_s: float, nodes: Iterable[str]) -> list[Event]:
        """Drivers leave nodes of their own accord."""
        reports: dict[str, list[Report]] = defaultdict(list)
        for node in nodes:
            told = reports[self.owner[node]]
            if node in self._warming:  # else the core would take it that nothing came of the pilot
                told.append(_report(self._leases[node], "leaving", time_s))
            told.append(_report(self._leases[node], "ended", time_s))
            self._leave(node)
        return [Reported(time_s, trainer, tuple(told)) for trainer, told in reports.items()]

    def _take(self, lease: Lease) -> None:
        self.owner[lease.node] = lease.trainer
        self._leases[lease.node] = lease.id
        self._pilots[lease.id] = lease.node

    def _leave(self, node: str) -> None:
        del self.owner[node]
        self._warming.discard(node)
        del self._pilots[self._leases.pop(node)]


def _report(lease: str, state: LeaseState, time_s: float) -> LeaseReport:
    return LeaseReport(time_s, lease, state, job_id=lease)
