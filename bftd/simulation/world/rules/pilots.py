"""The rules for the pilots that Slurm really runs, beside what the daemon believes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from bftd.core.model import timing
from bftd.core.model.domain import Lease, State
from bftd.protocol import comment
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.slurmctld import PilotJob
from elastic.base.timing import CONNECT_S, DRIVER_LOST_S

_SEEN_WITHIN_S = 10.0
"""A daemon that sees the cluster knows within this time that a node has a job."""

_LEAVES_WITHIN_S = 5.0
"""A pilot that Slurm asks for its node is gone within this time: see give_back_bound_s."""

_WITHOUT_DRIVER_S = CONNECT_S + DRIVER_LOST_S + 10.0
"""An agent without its driver ends within this time, even if it has just been started."""

_UNKNOWN_S = timing.ORPHAN_GRACE_S + timing.CANCEL_AGAIN_S + 30.0
"""A pilot without a lease is cancelled within this time, even if the first try fails."""

_OVERSTAYS_S = timing.GRACEFUL_GRACE_S + timing.CANCEL_AGAIN_S + 30.0
_GONE_S = 30.0
"""The daemon knows within this time that a pilot is gone."""

_ORPHAN_S = 2.0
_PLACED_S = timing.PLACE_WITHIN_S + 15.0
_PLACED_SOON_S = 5.0
"""A driver that is well asks for a node within this time."""

_WORKS_WITHIN_S = 180.0
"""Workers train on a node within this time, if nothing hinders them."""

_USED_WITHIN_S = 120.0
"""An idle node, and a trainer without one, do not stay apart for longer while nothing hinders them."""

_TURNS = 10
"""Trainers are planned for, and resume, so many at a time."""

_CALM_S = 180.0
"""A fault may be felt for so long after it."""


class Driver(Protocol):
    """A trainer's driver, as far as it is looked at."""

    @property
    def runs(self) -> bool:
        """Whether its process is alive."""


class PilotRules:
    """Looks at pilots whenever one has come or gone, and once a second at what lasts."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        users: Mapping[str, str],
        drivers: Mapping[str, Driver],
        calm: Callable[[], bool],
    ) -> None:
        """`users` has the user of each trainer; `calm`: nothing is broken at present."""
        self._cluster = cluster
        self._users = users
        self._drivers = drivers
        self._calm = calm
        self._known: dict[str, str] = {}
        self._here: dict[str, PilotJob] = {}
        self._asked: set[str] = set()
        self._of_lease: dict[str, str] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._still: set[tuple[str, str]] = set()
        self._disturbed_s = 0.0

    def changed(self, granted: Mapping[str, Lease], now_s: float) -> Iterator[str]:
        """Yield the rules that do not hold, now that a pilot or a regular job has come or gone."""
        owners: dict[str, str] = {}
        for pilot in self._cluster.pilots.values():
            if self._cluster.has_job(pilot.node):
                yield f"S1: pilot {pilot.id} and job {self._job_on(pilot.node)} are on {pilot.node} together"
            if pilot.node in owners:
                yield f"S4: pilots {owners[pilot.node]} and {pilot.id} are on {pilot.node} together"
            owners[pilot.node] = pilot.id
            if pilot.id not in self._known:
                yield from self._came(pilot, granted)
            self._here[pilot.id] = pilot
            if pilot.ending and pilot.id not in self._asked:
                self._asked.add(pilot.id)
                if now_s - pilot.began_s >= pilot.limit_s and now_s - self._disturbed_s > _CALM_S:
                    yield f"S1: pilot {pilot.id} is ended by its time limit"

    def _came(self, pilot: PilotJob, granted: Mapping[str, Lease]) -> Iterator[str]:
        trainer, lease_id = comment.parse(pilot.comment) or ("", "")
        self._known[pilot.id] = lease_id
        if self._users.get(trainer, pilot.user) != pilot.user:
            yield f"S7: pilot {pilot.id} of {pilot.user} is for trainer {trainer} of {self._users[trainer]}"
        lease = granted.get(lease_id)
        if lease is None or (lease.trainer, lease.node) != (trainer, pilot.node):
            yield f"S5: pilot {pilot.id} on {pilot.node} for {trainer} has no lease"
            return
        if (other := self._of_lease.setdefault(lease_id, pilot.id)) != pilot.id:
            yield f"S4: pilots {other} and {pilot.id} are for the one lease {lease_id}"
        if pilot.limit_s > lease.limit_s:
            yield f"S1: pilot {pilot.id} may last {pilot.limit_s:g} s, its lease {lease.limit_s:g} s"

    # -- what lasts too long ---

    def lasting(self, state: State | None, blind: bool, now_s: float) -> Iterator[str]:
        """Yield what has lasted too long; `blind`: the daemon is down, or cannot ask Slurm."""
        if not self._calm():
            self._disturbed_s = now_s
        self._still = set()
        yield from self._without_driver(now_s)
        for pilot in [pilot for pilot in self._here.values() if pilot.over.is_set()]:
            alive = [one.name for one in (pilot.step, pilot.worker) if one is not None and not one.dead]
            if not alive:
                del self._here[pilot.id]
            elif self._lasts("orphan", pilot.id, True, now_s) > _ORPHAN_S:
                yield f"orphans: {' and '.join(alive)} of pilot {pilot.id} live on after it"
        for pilot in self._cluster.pilots.values():
            stays_s = self._lasts("ending", pilot.id, pilot.ending and self._cluster.may_leave(pilot), now_s)
            if stays_s > _LEAVES_WITHIN_S:
                yield f"S2: pilot {pilot.id} is on {pilot.node} {stays_s:.1f} s after it was asked to leave"
        if state is not None and not blind:
            yield from self._beside_leases(state, now_s)
            yield from self._unused(state, now_s)
        self._since = {what: since_s for what, since_s in self._since.items() if what in self._still}

    def _job_on(self, node: str) -> str:
        return self._cluster.regular_nodes()[node]

    def _lasts(self, what: str, name: str, holds: bool, now_s: float) -> float:
        """Return for how long something holds without a break."""
        if not holds:
            return 0.0
        self._still.add((what, name))
        return now_s - self._since.setdefault((what, name), now_s)

    def _without_driver(self, now_s: float) -> Iterator[str]:
        for pilot in self._cluster.pilots.values():
            trainer, _ = comment.parse(pilot.comment) or ("", "")
            driver = self._drivers.get(trainer)
            agent = pilot.step if pilot.step is not None and not pilot.step.dead and pilot.step.held is None else None
            alone = (driver is None or not driver.runs) and agent is not None
            alone_s = self._lasts("alone", pilot.id, alone, now_s)
            if alone_s > _WITHOUT_DRIVER_S:
                yield f"S3: the agent of pilot {pilot.id} lives on {alone_s:.0f} s after its driver"

    def _beside_leases(self, state: State, now_s: float) -> Iterator[str]:
        pilots = {self._known.get(pilot.id): pilot for pilot in self._cluster.pilots.values()}
        for lease in state.leases.values():
            seen_s = self._lasts("regular", lease.id, lease.live and self._cluster.has_job(lease.node), now_s)
            if seen_s > _SEEN_WITHIN_S:
                yield f"S2: lease {lease.id} lives on, {seen_s:.0f} s after job {self._job_on(lease.node)} began"
            gone = lease.placed_s is not None and lease.id not in pilots
            gone = gone and not self._cluster.is_unreachable(lease.node)
            gone_s = self._lasts("gone", lease.id, gone, now_s)
            if gone_s > _GONE_S:
                yield f"L3: lease {lease.id} has had no pilot for {gone_s:.0f} s"
            late_s = self._lasts("late", lease.id, lease.live and lease.placed_s is None, now_s)
            if late_s > (_PLACED_S if now_s - self._disturbed_s < _CALM_S else _PLACED_SOON_S):
                yield f"L1: lease {lease.id} was granted {late_s:.0f} s ago and has no pilot"
            idle = lease.live and lease.placed_s is not None and lease.phase != "working" and lease.id in pilots
            idle_s = self._lasts("works", lease.id, idle, now_s)
            if idle_s > _WORKS_WITHIN_S and now_s - self._disturbed_s > _CALM_S:
                yield f"L1: nothing has trained on {lease.node}, of lease {lease.id}, for {idle_s:.0f} s"
            stays = not lease.live and lease.id in pilots and self._cluster.may_leave(pilots[lease.id])
            over_s = self._lasts("over", lease.id, stays, now_s)
            if over_s > _OVERSTAYS_S:
                yield f"S2: the pilot of lease {lease.id} stays {over_s:.0f} s after it was asked back"
        for lease_id, pilot in pilots.items():
            unknown = lease_id not in state.leases and self._cluster.may_leave(pilot)
            unknown_s = self._lasts("unknown", pilot.id, unknown, now_s)
            if unknown_s > _UNKNOWN_S:
                yield f"L3: pilot {pilot.id} on {pilot.node} has had no lease for {unknown_s:.0f} s"

    def _unused(self, state: State, now_s: float) -> Iterator[str]:
        """An idle node is used while no job waits, a trainer has no node, and nothing was broken for a while."""
        if self._cluster.waiting or now_s - self._disturbed_s < _CALM_S:
            return
        idle = [node for node in self._cluster.idle_nodes() if node not in state.quarantined]
        within_s = _USED_WITHIN_S * (1 + len(self._users) // _TURNS)
        idle = [node for node in idle if self._lasts("idle", node, True, now_s) > within_s]
        having = {lease.trainer for lease in state.leases.values() if lease.live}
        for id_, driver in self._drivers.items():
            trainer = state.trainers.get(id_)
            wants = driver.runs and id_ not in having
            wants = wants and (trainer is None or (trainer.active and trainer.no_growth_until_s <= state.time_s))
            waits_s = self._lasts("waits", id_, wants, now_s)
            if waits_s > within_s and len(idle) >= (trainer.sizes.low if trainer is not None else 1):
                yield f"L1: trainer {id_} has waited {waits_s:.0f} s for a node, and {', '.join(sorted(idle))} are idle"
