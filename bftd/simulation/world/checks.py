"""The rules that have to hold after every event of a simulated world, and at its end; `rules` has them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bftd.core.model.domain import Failure, State
from bftd.http.auth.ownership import FOREGROUND
from bftd.http.handlers.driver import MOST_TRAINERS_OF_A_USER
from bftd.service.service import Service
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.faults.host_faults import HOST_KINDS
from bftd.simulation.world.faults.slurm_faults import SLURM_KINDS
from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.network import Network
from bftd.simulation.world.programs import SimulatedDaemon, SimulatedDriver, TrainerOrder
from bftd.simulation.world.rules import Violation, bounds, ends
from bftd.simulation.world.rules.ends import Ended
from bftd.simulation.world.rules.pilots import PilotRules
from bftd.simulation.world.rules.state import StateRules, failures_of
from bftd.simulation.world.scripts import BATCH
from elastic.options.elastic_option import ElasticSpec

_OWN_FAULTS = "please report it", "its agent failed"
_HOUR_S = 3600.0
_LATE = frozenset({"slow", "cut", "reset", "slurmctld", "driver", *SLURM_KINDS, *HOST_KINDS})
"""With these kinds of faults a sound node may come too late, and be blamed for it."""


class Watched(Protocol):
    """The site, as it is looked at."""

    @property
    def drivers(self) -> Mapping[str, SimulatedDriver]:
        """The present drivers, by trainer."""

    @property
    def struck(self) -> Sequence[str]:
        """The kinds of the faults so far."""

    @property
    def daemon(self) -> SimulatedDaemon | None:
        """The daemon, if it runs."""

    def is_sound(self) -> bool:
        """Whether no host hinders its programs, and none has for a while."""


class Checks:
    """The rules, looked at where something has changed since the last event.

    `counted` has the steps and samples that the daemon counts for each trainer, or did until it forgot it.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        cluster: SimulatedCluster,
        orders: Sequence[TrainerOrder],
        site: Watched,
    ) -> None:
        self.counted: dict[str, tuple[int, float]] = {}
        self.cancelled: set[str] = set()
        """The trainers that their users have cancelled: they need not come to their end."""

        self._loop = loop
        self._network = network
        self._cluster = cluster
        self._orders = orders
        self._trainings = {order.job_id: order.training for order in orders}
        self._site = site
        self._known_struck = 0
        self._began_s = loop.time()
        self._state_rules = StateRules()
        users = {order.job_id: str(order.uid) for order in orders}
        self._pilot_rules = PilotRules(cluster, users, site.drivers, self._calm)
        self._changes = -1
        self._is_sound = True
        self._state: State | None = None
        self._failures: Mapping[str, Sequence[Failure]] = {}
        self._service: Service | None = None
        self._blind_since_s: float | None = None
        self._groups = 0
        self._next_s = self._next_hour_s = 0.0
        self._fault = ""

    def heard(self, line: str) -> None:
        """Take a line of a driver's log: none may tell of a fault of the driver or the agent itself."""
        if any(words in line for words in _OWN_FAULTS):
            self._fault = line

    def loses_the_newest(self) -> None:
        """Note that the daemon's host loses what it has not flushed: its next state may be an earlier one."""
        self._state_rules.forget()

    def daemon_died_writing(self) -> None:
        """Note that the daemon was killed in an operation on its disk: its ledger may be a step ahead."""
        self._state_rules.died_writing()

    def look(self) -> None:
        """Raise Violation for a rule that does not hold in the daemon's state, or on the cluster."""
        now_s = self._loop.time()
        daemon = self._site.daemon
        service = daemon.service if daemon is not None else None
        state = service.core if service is not None else None
        if self._fault:
            raise Violation(self._fault)
        if state is not None and state is not self._state:
            assert daemon is not None
            anew = service is not self._service and self._service is not None
            self._state, self._service = state, service
            is_sound = self._site.is_sound()
            _raise(self._state_rules.broken(state, daemon.seen, self._blind_s(now_s), anew=anew, is_sound=is_sound))
            self._look_at_counts(state)
            if state.failures != self._failures and not _LATE & set(self._site.struck):
                guilty = {lease for training in self._trainings.values() for lease in training.guilty}
                _raise(failures_of(state, guilty))
            self._failures = state.failures
        if self._cluster.changes != self._changes:
            self._changes = self._cluster.changes
            _raise(self._pilot_rules.changed(self._state_rules.granted, now_s))
        if now_s >= self._next_s:
            self._next_s = now_s + 1.0
            self._look_now_and_then(state, now_s)

    def _look_now_and_then(self, state: State | None, now_s: float) -> None:
        self._is_sound = self._site.is_sound()
        blind = state is None or not self._sees() or not state.pool.seen
        _raise(self._pilot_rules.lasting(state, blind, now_s))
        for order in self._orders:
            _raise(f"{text}, trainer {order.job_id}" for text in order.training.wrong)
        self._look_at_groups()
        if now_s >= self._next_hour_s:
            self._next_hour_s = now_s + _HOUR_S
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        kept: dict[str, object] = {f"driver {id_}": driver.trainer for id_, driver in self._site.drivers.items()}
        if self._service is not None:
            kept["bftd"] = self._service
        trainers = max(len(self._orders), len(self._state.trainers) if self._state is not None else 0)
        _raise(bounds.broken(kept, len(self._cluster.nodes), trainers))

    def _blind_s(self, now_s: float) -> float:
        """Return for how long Slurm has answered nothing."""
        if not self._cluster.is_away:
            self._blind_since_s = None
            return 0.0
        if self._blind_since_s is None:
            self._blind_since_s = now_s
        return now_s - max(self._blind_since_s, self._cluster.back_s)

    def _sees(self) -> bool:
        """Whether a daemon sees the cluster as it is."""
        daemon = self._site.daemon
        sees = daemon is not None and daemon.process.held is None and self._cluster.is_clear
        return sees and self._is_sound

    def _is_stopped(self) -> bool:
        """Whether any process of a pilot or driver is stopped."""
        of_pilots = (
            process
            for pilot in self._cluster.pilots.values()
            for process in (pilot.step, pilot.node_process, pilot.worker)
        )
        processes = [*of_pilots, *(driver.process for driver in self._site.drivers.values())]
        return any(process is not None and process.held is not None for process in processes)

    def _calm(self) -> bool:
        before, self._known_struck = self._known_struck, len(self._site.struck)
        strangers = self._state is not None and any(map(_is_strange, self._state.trainers))
        hindered = self._network.slow != 1.0 or self._network.cuts or self._is_stopped() or strangers
        return before == self._known_struck and not hindered and self._sees() and self._cluster.is_sound

    def _look_at_counts(self, state: State) -> None:
        strangers = [id_ for id_ in state.trainers if _is_strange(id_)]
        if len(strangers) > MOST_TRAINERS_OF_A_USER:
            raise Violation(f"hostile: a user has {len(strangers)} trainers")
        for id_, trainer in state.trainers.items():
            if _is_strange(id_):
                continue
            training = self._trainings[id_]
            self.counted[id_] = trainer.step, trainer.samples
            if trainer.step > training.saved_step or trainer.samples > BATCH * training.saved_step:
                raise Violation(
                    f"S10: trainer {id_} counts step {trainer.step} and {trainer.samples:g} samples; its workers have "
                    f"saved step {training.saved_step}, {BATCH * training.saved_step} samples"
                )

    def _look_at_groups(self) -> None:
        if (count := sum(len(training.groups) for training in self._trainings.values())) == self._groups:
            return
        self._groups = count
        for order in self._orders:
            sizes = ElasticSpec.parse(order.spec).allowed
            for group in order.training.groups.values():
                if not sizes.allows(group.world):
                    raise Violation(f"S6: trainer {order.job_id} trains on {group.world} nodes, not {order.spec}")

    # -- the end ---

    def look_at_ends(self, folder: Path) -> None:
        """Raise Violation for what must not be, some time after every trainer has ended."""
        now_s, state, kinds = self._loop.time(), self._state, set(self._site.struck)
        trainers = [self._ended(order) for order in self._orders if order.job_id not in self.cancelled]
        self._look_at_memory()
        if left := list(self._cluster.pilots):
            raise Violation(f"L3: pilots {', '.join(left)} are left after the last trainer's end")
        _raise(ends.outcomes(trainers))
        _raise(ends.left_behind(folder, trainers))
        _raise(bounds.files(folder, (now_s - self._began_s) / _HOUR_S, len(self._orders)))
        if state is not None:
            _raise(ends.counts(trainers, state, calm=not kinds, strict=kinds <= {"script", "worker", "agent"}))
            if state.leases:
                raise Violation(f"ends: leases {', '.join(state.leases)} are left")
            _raise(ends.usage(folder / "ledger.sqlite", state, self._cluster.pilot_s, self._cluster.pilots_ever))
        if self._network.ends:
            raise Violation(f"orphans: {len(self._network.ends)} connections are left")
        if not kinds & SLURM_KINDS.keys():
            _raise(ends.delays(self._cluster.runs(), self._cluster.runs_without_pilots()))

    def _ended(self, order: TrainerOrder) -> Ended:
        driver = self._site.drivers.get(order.job_id)
        outcome = driver.outcome if driver is not None else None
        progress = driver.trainer.run.progress if driver is not None and driver.trainer is not None else None
        step, lost = (progress.step, progress.steps_lost) if progress is not None else (0, 0)
        return Ended(order.job_id, order.training, outcome, step, lost)


def _is_strange(trainer: str) -> bool:
    """Whether a trainer is a hostile user's: all others' drivers are jobs."""
    return trainer.startswith(FOREGROUND)


def _raise(broken: Iterable[str]) -> None:
    for text in broken:
        raise Violation(text)
