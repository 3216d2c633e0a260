"""A simulated cluster around the daemon's own core: a pool that changes, and drivers that obey at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import nextafter

from bftd.base.errors import BftError
from bftd.core.model.domain import Lease, LeaseChanged, PoolNode, PoolView, Settings, SolverFailed, State
from bftd.core.model.events import Event, PoolObserved, Reported
from bftd.core.step import fold
from bftd.simulation.drivers.driver import Drivers
from bftd.simulation.replay.planner import TimedPlanner

# A simulated cluster has no limit on submissions, no stale snapshots and endless pilots: the plan alone decides.
_NEVER_S = 1e12
_NO_LIMIT = 10**9


def settings(
    *, t_fwd_s: float, pj_max: int, objective: str, solver: str, max_nodes: int = 0, favour_waiting: bool = True
) -> Settings:
    """Return the core's settings on a cluster where only the plan, and possibly `max_nodes`, limits anything.

    Unless it is to `favour_waiting` trainers, a plan goes by the objective alone, as in the paper.
    """
    return Settings(trusting=True).changed(
        t_fwd_s=t_fwd_s,
        objective=objective,
        pj_max=pj_max,
        solver=solver,
        solve_time_limit_s=60.0,
        stale_after_s=_NEVER_S,
        pilot_limit_s=_NEVER_S,
        give_back_bound_s=_NEVER_S,
        submit_rate_per_min=_NO_LIMIT,
        trainers_per_user=0,
        max_nodes=max_nodes,
        **({} if favour_waiting else {"first_node_within_s": 0.0}),
    )


class SimulatedCluster:
    """The core with its pool of simulated nodes, and the drivers of the active trainers."""

    def __init__(self, settings: Settings, planner: TimedPlanner, drivers: Drivers) -> None:
        self.state = State(settings=settings)
        self.drivers = drivers
        self._planner = planner
        # in the core's order of preference, so that it has nothing to sort
        self._names: list[str] = []
        self._places: list[tuple[int, str]] = []
        # all nodes that were ever in the pool, and those that are now
        self._seen: dict[str, PoolNode] = {}
        self._nodes: dict[str, PoolNode] = {}
        self._version = 0
        self._viewed_s = -1.0

    @property
    def pool_size(self) -> int:
        """The number of idle nodes."""
        return len(self._names)

    def change_pool(self, joined: Iterable[str], left: Iterable[str]) -> None:
        """Let nodes join and leave; the core sees it in `decide`."""
        for name in left:
            place = bisect_left(self._places, (len(name), name))
            del self._places[place], self._names[place]
        for name in joined:
            if name not in self._seen:
                self._seen[name] = PoolNode(name, state="IDLE", in_pool=True, why="")
            key = (len(name), name)
            place = bisect_left(self._places, key)
            self._places.insert(place, key)
            self._names.insert(place, name)
        self._version += 1
        self._nodes = dict(zip(self._names, map(self._seen.__getitem__, self._names), strict=True))

    def apply(self, events: Sequence[Event]) -> None:
        """Report events to the core without a view of the pool, so that nothing is decided."""
        self.state, _ = fold(self.state, events, self._planner, explain=False)

    def decide(self, now_s: float, events: Sequence[Event]) -> None:
        """Report all events to the core before it plans, and let the drivers carry out its decisions."""
        reports, left = self._advance(now_s, [*events, self._observed(now_s)])
        if left and self._to_settle():
            self._planner.settling = self.state.planned.assignment
            reports, _ = self._advance(now_s, [*reports, self._observed(now_s)])
            self._planner.settling = None
        if reports:
            self._advance(now_s, reports)
        self.drivers.resize(now_s)

    def _observed(self, now_s: float) -> PoolObserved:
        self._viewed_s = max(now_s, nextafter(self._viewed_s, _NEVER_S))
        view = PoolView(
            version=self._version,
            time_s=self._viewed_s,
            nodes=self._nodes,
            pilots=self.drivers.pilots.copy(),
            job_ids=frozenset(self.drivers.in_play),
        )
        return PoolObserved(self._viewed_s, view)

    def _advance(self, now_s: float, events: Sequence[Event]) -> tuple[list[Event], bool]:
        """Fold events into the core, and let the drivers obey.

        Returns the drivers' reports, and whether any of them left a node.
        """
        self.state, actions = fold(self.state, events, self._planner, explain=False)
        changed: list[Lease] = []
        for action in actions:
            if isinstance(action, SolverFailed):  # the daemon would keep its present map, a replay must not
                raise BftError(f"no plan at {now_s:g} s of the trace: {action.error}")
            # no driver has to act on a lease that ended in the same step
            if isinstance(action, LeaseChanged) and action.kind != "ended" and action.lease.id in self.state.leases:
                changed.append(action.lease)
        reports = self.drivers.obey(changed, now_s)
        left = any(not lease.live for lease in changed)
        return [Reported(now_s, trainer, tuple(of_trainer)) for trainer, of_trainer in reports.items()], left

    def _to_settle(self) -> bool:
        """Whether nodes are planned for a trainer that could not have them yet."""
        holders = self.drivers.holders
        return any(
            holders.get(node) != trainer for trainer, nodes in self.state.planned.assignment.items() for node in nodes
        )
