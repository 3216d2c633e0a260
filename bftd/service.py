"""The one place where the core's state changes: events in, the ledger written, drivers woken, pilots cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from bftd import pool, wire
from bftd.config import Config
from bftd.core import step
from bftd.domain import CancelPilot, Configured, Decided, Event, LeaseChanged, PoolObserved, Settings
from bftd.ledger import Ledger
from slurm_plugin.types import Snapshot

log = logging.getLogger("bftd")


def settings_of(config: Config) -> Settings:
    """The core's settings as the configuration file has them."""
    return Settings(
        **dataclasses.asdict(config.decide),
        stale_after_s=config.pool.stale_after_s,
        quarantine_s=config.pool.quarantine_s,
        quarantine_after=config.pool.quarantine_after,
        pilot_limit_s=config.pool.pilot_limit_s,
        give_back_bound_s=config.pool.give_back_bound_s,
        submit_rate_per_min=config.slurm.submit_rate_per_min,
    )


class Service:
    """The core with its ledger; used from the event loop's thread only.

    `cancel` is called with the job ids of pilots that overstay and must not block.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        cancel: Callable[[list[str]], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.now = now
        self.stopping = False
        self._cancel = cancel
        self._changed: dict[str, asyncio.Event] = {}
        self._memory = pool.PoolMemory()
        self._job_users: dict[str, str] = {}
        self.state = ledger.load(now())
        ledger.prune(now())
        self.configure(config)

    @property
    def partition(self) -> str:
        """The partition that is harvested."""
        return self.config.slurm.partition

    @property
    def poll_s(self) -> float:
        """Time between two snapshots."""
        return self.config.slurm.poll_s

    def configure(self, config: Config) -> None:
        """Take another configuration; what `bft tune` has set stays."""
        self.config = config
        settings = settings_of(config)
        tuned = wire.restored(self.ledger.tuned(), settings)
        self.apply(Configured(self.now(), dataclasses.replace(settings, **tuned)))

    def tune(self, changes: dict[str, Any]) -> None:
        """Change settings now and for every later start."""
        self.ledger.set_tuned(self.ledger.tuned() | changes)
        self.apply(Configured(self.now(), dataclasses.replace(self.state.settings, **changes)))

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one good snapshot."""
        leased = {lease.node: lease.job_id for lease in self.state.leases.values()}
        self._memory, view = pool.observe(
            self._memory, snapshot, self.config.pool, self.partition, leased, self.state.quarantined
        )
        self._job_users = {job.id: job.user for job in snapshot.jobs}
        self.apply(PoolObserved(snapshot.time_s, view))

    def job_user(self, job_id: str) -> str | None:
        """Whose job that is, None when the last snapshot does not have it."""
        return self._job_users.get(job_id)

    def apply(self, event: Event) -> None:
        """Fold one event into the state and carry out what follows from it."""
        before = self.state
        after, actions = step(before, event)
        self.ledger.save(before, after, actions)
        self.state = after
        for action in actions:
            if isinstance(action, Decided):
                log.info("%s", action.text)
            elif isinstance(action, LeaseChanged):
                log.debug("%s %s: %s", action.kind, action.lease.id, action.reason)
            elif isinstance(action, CancelPilot):
                log.warning("cancelling pilot %s of trainer %s: %s", action.job_id, action.trainer, action.reason)
        overstaying = [action.job_id for action in actions if isinstance(action, CancelPilot)]
        if overstaying:
            self._cancel(overstaying)
        for id_, trainer in after.trainers.items():
            known = before.trainers.get(id_)
            if known is None or (known.version, known.epoch, known.state) != (
                trainer.version,
                trainer.epoch,
                trainer.state,
            ):
                self._wake(id_)

    def changed(self, trainer: str) -> asyncio.Event:
        """Set when the trainer's leases, driver or state change after this call."""
        return self._changed.setdefault(trainer, asyncio.Event())

    def stop(self) -> None:
        """Let every waiting driver go."""
        self.stopping = True
        for trainer in list(self._changed):
            self._wake(trainer)

    def _wake(self, trainer: str) -> None:
        event = self._changed.pop(trainer, None)
        if event is not None:
            event.set()
