"""The daemon's service in shadow mode: the same core on the same snapshots, for imaginary trainers."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from bftd.base.errors import LedgerError
from bftd.config.keys import Config
from bftd.core.inputs import accounting
from bftd.core.model import timing
from bftd.core.model.decisions import Cancelled, Waits
from bftd.core.model.domain import Action, CancelPilot, Decided, State, Trainer
from bftd.core.model.events import (
    ClockSet,
    Configured,
    Event,
    Finished,
    Heard,
    PoolObserved,
    Registered,
    Reported,
)
from bftd.core.step import fold
from bftd.ledger.file import Ledger
from bftd.pool import membership, synthetic
from bftd.service.service import Service
from bftd.shadow.totals import Totals
from bftd.shadow.trainers import ImaginaryTrainers, in_order
from bftd.simulation.replay.options import Objective, Options
from slurm_plugin.read.types import Snapshot

log = logging.getLogger("bftd")

# The name of the totals in the ledger.
_KEPT = "shadow"
SENTENCE = "bftd runs in shadow mode: it grants nothing"


class SnapshotSink(Protocol):
    """A consumer of every snapshot beside the service."""

    @property
    def recording_path(self) -> str:
        """The path it writes to, "" if it does not write."""
        ...

    def see(self, snapshot: Snapshot) -> None:
        """Take one good snapshot."""
        ...

    def close(self) -> None:
        """Stop taking snapshots."""
        ...


class ShadowService(Service):
    """The core with imaginary trainers.

    `calls` counts the Slurm commands run so far. Events of real drivers go to the `guests`. No action of the core
    reaches Slurm or a driver: no code here could carry one out.
    """

    mode = "shadow"
    greeting = f"{SENTENCE}; this job waits, and trains once the site has gone live"

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        calls: Callable[[], int] = int,
        recorder: SnapshotSink | None = None,
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        self._guests = _RealDrivers()
        super().__init__(config, ledger, _cancel_nothing, now, elapsed)
        # the ledger has no order of trainers that arrived together, and the core considers earlier arrivals first
        self.core = replace(self.core, trainers=in_order(self.core.trainers))
        self._imaginary = ImaginaryTrainers(self.core, now())
        self._totals = Totals.restored(ledger.kept(_KEPT), now())
        self._calls = calls
        self._calls_before = calls()
        self._recorder = recorder
        self._idle = 0
        self._snapshot: Snapshot | None = None

    @property
    def state(self) -> State:
        """The core's state, with the real drivers that wait."""
        trainers = {**self.core.trainers, **self._guests.state.trainers}
        return replace(self.core, trainers=trainers)

    def apply(self, *events: Event) -> None:
        """Apply events from outside; those of drivers do not affect any decision."""
        for event in events:
            if isinstance(event, (Registered, Heard, Reported, Finished)):
                self._host(event)
            elif isinstance(event, Configured):  # shadow mode uses no rights in Slurm
                # a first node is promised to users, and each imaginary trainer has a user of its own
                settings = event.settings.changed(operator=False, first_node_within_s=0.0)
                settings = replace(settings, trusting=True)
                super().apply(replace(event, settings=settings))
            else:
                super().apply(event)

    def observe_later(self, snapshot: Snapshot) -> Callable[[], Callable[[], None]]:
        """Judge the snapshot in the loop too: no node is given back in shadow mode, so no job waits for the loop."""
        return lambda: functools.partial(self.observe, snapshot)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one good snapshot: what would have happened up to it, and what would be done now."""
        if not self._is_timely(snapshot):
            return
        now_s = snapshot.time_s
        before, passed_s = self.core, now_s - self.core.pool.time_s
        if passed_s <= 0:
            return
        counts = accounting.counted_s(passed_s, before.settings) > 0
        earned = self._imaginary.earned
        self._imaginary.advance(now_s, counts)
        events = self._imaginary.events(now_s, before.leases.values(), self.config.daemon.shadow_trainers)
        done = {event.trainer for event in events if isinstance(event, Finished)}
        pilots = [lease for lease in before.leases.values() if lease.trainer not in done]
        shown, lent = synthetic.with_pilots(snapshot, self.partitions, pilots, self._imaginary.ids)
        harvest = synthetic.harvest(self.partitions)
        self._memory, view = membership.observe(
            self._memory, shown, self.config.pool, harvest, lent, before.quarantined
        )
        self._earmark_log.tell(self._memory.earmarks, view)
        super().apply(*events, PoolObserved(now_s, view))
        self._count_losses(lent.keys(), snapshot.nodes.keys())
        if reports := self._imaginary.obey(now_s, self.core.leases.values()):
            super().apply(*reports)
        self._count(before, passed_s if counts else 0.0, self._imaginary.earned - earned, len(done))
        self._look_around(snapshot)
        self._keep_totals()

    def overview_later(self, version: str) -> Callable[[], dict[str, Any]]:
        """Return a function that makes all of `GET /v1/status`, with the imaginary results under `shadow`."""
        live = super().overview_later(version)
        really = self._snapshot.nodes if self._snapshot else {}
        totals = self._totals.shown(self.core.usage.pool_node_seconds, self._as_planned)
        shadow = totals | {
            "samples_per_s": self._imaginary.rate,
            "submissions_last_min": len(self.core.grants),
            "trace": self._recorder.recording_path if self._recorder else "",
            "waiting": [
                {"id": trainer.id, "name": trainer.name, "user": trainer.user, "text": SENTENCE}
                for trainer in self._guests.state.trainers.values()
                if trainer.active
            ],
        }

        def overview() -> dict[str, Any]:
            shown = live()
            for node in shown["nodes"]:
                if (
                    real := really.get(node["name"])
                ) is not None:  # for a node with an imaginary pilot the core was shown another state
                    node["state"] = "+".join((real.state, *sorted(real.flags)))
                node["why"] = node["why"].replace("runs a pilot", "would run a pilot")
            return shown | {"shadow": shadow}

        return overview

    def stop(self) -> None:
        """Release every waiting driver, and end the trace."""
        super().stop()
        if self._recorder:
            self._recorder.close()

    @property
    def _as_planned(self) -> Options:
        decide = self.core.settings.decide
        objective: Objective = "throughput" if decide.objective == "throughput" else "efficiency"  # all weights are 1
        return Options(pj_max=min(decide.pj_max, self.config.daemon.shadow_trainers), objective=objective)

    def _settle(self, before: State, after: State, actions: Sequence[Action], owed: bool = False) -> None:
        """Record what would be done."""
        super()._settle(before, after, [_would(action) for action in actions], owed)

    def _host(self, event: Event) -> None:
        """Answer a real driver, and log once that it waits."""
        before = self._guests.state
        for trainer in self._guests.apply(event):
            waits = Decided(trainer.id, Waits(f"{trainer.name} of {trainer.user}", SENTENCE))
            self._note(waits)
            log.info("%s", waits.text)
        self._wake_changed(before, self._guests.state)

    def _clock_was_set(self, now_s: float, by_s: float) -> None:
        """Keep all ages as they are, also those of imaginary trainers and of guests."""
        super()._clock_was_set(now_s, by_s)
        self._imaginary.move(by_s)
        self._guests.apply(ClockSet(now_s, by_s))
        self._totals.since_s += by_s

    def _keep_totals(self) -> None:
        try:
            self.ledger.keep(_KEPT, self._totals.to_json())
        except LedgerError as error:  # they are kept with the next snapshot
            self._log_unwritten(str(error))

    def _look_around(self, snapshot: Snapshot) -> None:
        """Remember what Slurm itself shows."""
        # a node whose pilot is kept, although Slurm does not know it or shows the node unfit for now, has no job on it
        kept = {name for name, node in self.core.pool.nodes.items() if node.in_pool and node.pilot is not None}
        self._idle = len(synthetic.idle_nodes(snapshot, self.partitions) | kept)
        self._snapshot = snapshot
        self._job_users = {job.id: job.user for job in snapshot.jobs}
        self._guests.forget_silent(snapshot.time_s, self._job_users)
        if self._recorder:
            self._recorder.see(snapshot)

    def _count_losses(self, lent: Collection[str], nodes: Collection[str]) -> None:
        """Count the nodes of revoked leases that jobs have taken, and those given up ahead of a job."""
        taken: Counter[str] = Counter()
        for lease in self.core.leases.values():
            if lease.live or lease.node not in nodes:
                continue
            if lease.node not in lent:
                taken[lease.trainer] += 1
            elif lease.vacate or lease.leave_by_s is not None:
                self._totals.nodes_vacated += 1
        self._totals.preemptions += len(taken)
        self._totals.nodes_taken += taken.total()

    def _count(self, before: State, counted_s: float, earned: float, done: int) -> None:
        totals, calls = self._totals, self._calls()
        pool_s = self.core.usage.pool_node_seconds - before.usage.pool_node_seconds
        totals.pass_time(counted_s, self._idle, pool_s, self._as_planned)
        totals.samples += earned
        totals.completed += done
        totals.submissions += self.core.sequence - before.sequence
        totals.most_submissions_per_min = max(totals.most_submissions_per_min, len(self.core.grants))
        totals.polls += 1
        totals.slurm_calls += calls - self._calls_before
        self._calls_before = calls


def _would(action: Action) -> Action:
    if isinstance(action, Decided):
        return replace(action, mood="conditional")
    if isinstance(action, CancelPilot):
        return Decided(action.trainer, Cancelled(f"pilot {action.job_id}", action.reason), "conditional")
    return action


def _cancel_nothing(_: list[str]) -> None:
    """Do nothing: no job is ever cancelled in shadow mode."""


class _RealDrivers:
    """The real drivers that have registered and were heard of since: answered like any, and never lent a node.

    They live in a separate state of the core, which never receives a snapshot: so nothing is planned for them.
    """

    def __init__(self) -> None:
        self.state = State()

    def apply(self, event: Event) -> list[Trainer]:
        """Apply an event of a driver; returns the trainers that are new."""
        before = self.state.trainers
        self.state, _ = fold(self.state, (event,), explain=False)
        return [trainer for id_, trainer in self.state.trainers.items() if id_ not in before]

    def forget_silent(self, now_s: float, job_ids: Collection[str]) -> None:
        """Drop trainers whose driver is silent and whose job is gone, unless they ended only a short time ago."""
        staying = {
            id_: trainer
            for id_, trainer in self.state.trainers.items()
            if id_ in job_ids or now_s - trainer.heard_s <= timing.DRIVER_SILENT_S or _just_ended(trainer, now_s)
        }
        if len(staying) < len(self.state.trainers):
            self.state = replace(self.state, trainers=staying)


def _just_ended(trainer: Trainer, now_s: float) -> bool:
    return trainer.finished_s is not None and now_s - trainer.finished_s <= timing.FORGET_FINISHED_S
