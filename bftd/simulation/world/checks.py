"""The rules that have to hold after every event of a simulated world."""

from __future__ import annotations

from collections.abc import Sequence

from bftd.core.invariants import InvalidState, validate_state
from bftd.core.model.domain import State
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.programs import TrainerOrder
from bftd.simulation.world.training import BATCH

_SEEN_WITHIN_S = 10.0
_OWN_FAULT = "please report it"


class Violation(AssertionError):
    """A rule does not hold."""


class Checks:
    """The rules, looked at where something has changed since the last event."""

    def __init__(self, cluster: SimulatedCluster, orders: Sequence[TrainerOrder]) -> None:
        self._cluster = cluster
        self._trainings = {order.job_id: order.training for order in orders}
        self._changes = -1
        self._state: State | None = None
        self._overdue: dict[str, float] = {}
        self._looked_s = 0.0
        self.counted: dict[str, tuple[int, float]] = {}
        """The steps and samples that the daemon counts for each trainer, or did until it forgot it."""
        self.told_of: set[str] = set()
        """The trainers whose ends their drivers have told the daemon."""

        self._fault = ""

    def heard(self, line: str) -> None:
        """Take a line of a driver's log: none may tell of a fault of the driver itself."""
        if _OWN_FAULT in line:
            self._fault = line

    def look(self, state: State | None) -> None:
        """Raise Violation for a rule that does not hold in the daemon's state, or on the cluster."""
        if self._fault:
            raise Violation(self._fault)
        if self._cluster.changes != self._changes:
            self._changes = self._cluster.changes
            self._look_at_cluster()
        if state is not None and state is not self._state:
            self._state = state
            self._look_at_state(state)
            self._look_at_leases(state)

    def _look_at_cluster(self) -> None:
        cluster, owners = self._cluster, dict[str, str]()
        for pilot in cluster.pilots.values():
            if cluster.has_job(pilot.node):
                job = cluster.regular_nodes()[pilot.node]
                raise Violation(f"S1: pilot {pilot.id} and job {job} are on {pilot.node} together")
            if pilot.node in owners:
                raise Violation(f"S4: pilots {owners[pilot.node]} and {pilot.id} are on {pilot.node} together")
            owners[pilot.node] = pilot.id

    def _look_at_state(self, state: State) -> None:
        try:
            validate_state(state)
        except InvalidState as error:
            raise Violation(str(error)) from None
        for id_, trainer in state.trainers.items():
            training = self._trainings[id_]
            self.counted[id_] = trainer.step, trainer.samples
            if trainer.exit_code is not None:
                self.told_of.add(id_)
            if trainer.step > training.highest or trainer.samples > BATCH * training.highest:
                raise Violation(
                    f"S10: trainer {id_} counts step {trainer.step} and {trainer.samples:g} samples; its workers have "
                    f"come to step {training.highest}, {BATCH * training.highest} samples"
                )

    def _look_at_leases(self, state: State) -> None:
        """A daemon that sees the cluster knows before long that a node has a job."""
        was_stopped = state.time_s - self._looked_s > _SEEN_WITHIN_S / 2
        self._looked_s = state.time_s
        if was_stopped or not self._cluster.is_clear:
            self._overdue.clear()
        has_job = self._cluster.has_job
        leases = state.leases.values() if self._cluster.is_clear else ()
        lent = {lease.id: lease.node for lease in leases if lease.live and has_job(lease.node)}
        self._overdue = {id_: self._overdue.get(id_, state.time_s) for id_ in lent}
        for id_, since_s in self._overdue.items():
            if state.time_s - since_s > _SEEN_WITHIN_S:
                job = self._cluster.regular_nodes()[lent[id_]]
                raise Violation(f"S2: lease {id_} lives on, {_SEEN_WITHIN_S:g} s after job {job} began")
