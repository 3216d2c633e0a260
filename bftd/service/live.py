"""The one place where the core's state changes: events in, the ledger written, drivers woken, pilots cancelled."""

from __future__ import annotations

import asyncio
import grp
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bftd import keys
from bftd.core.domain import (
    Action,
    CancelPilot,
    Configured,
    Decided,
    Event,
    LeaseChanged,
    PoolObserved,
    Registered,
    Settings,
    State,
)
from bftd.core.step import fold
from bftd.errors import ConfigError, LedgerError
from bftd.keys import Config
from bftd.pool import judgement
from bftd.pool.harvest import Harvest
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Welcome
from bftd.service import status
from bftd.service.ledger import Ledger
from slurm_plugin.types import Snapshot

log = logging.getLogger("bftd")

# Why nothing grows then, as drivers and users are told.
UNWRITTEN = "bftd cannot write its ledger"
# How often a ledger that could not be written is tried again; each try may hold up the loop for a moment.
RETRY_S = 5.0
# How often the ledger's size is looked at.
TEND_EVERY_S = 1.0


def settings_of(config: Config) -> Settings:
    """The core's settings as the configuration file has them."""
    return Settings(
        config.decide, config.limits, config.pool, config.slurm, _administrators(config.daemon.administrators)
    )


def _administrators(group: str) -> frozenset[str]:
    """Root and the listed members of a Unix group: they may have jobs of their own in the harvested partition."""
    try:
        members = grp.getgrnam(group).gr_mem if group else []
    except KeyError:
        members = []
    return frozenset({"root", *members})


def _still_good(tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings of `bft tune` that this bftd takes too: another version may have remembered them."""
    known = {key.name: key for key in keys.tunable()}
    good = {}
    for name, value in tuned.items():
        if name not in known:
            log.warning("dropping what bft tune has set: %r cannot be tuned", name)
            continue
        try:
            good[name] = known[name].checked(value, name)
        except ConfigError as error:
            log.warning("dropping what bft tune has set: %s", error)
    return good


class Service:
    """The core with its ledger; used from the event loop's thread only.

    `cancel` is called with the job ids of pilots that overstay and must not block. `core` is what is decided on.
    """

    mode = "live"
    # What drivers are told at registration beside their leases; nothing where it is empty.
    greeting = ""

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
        self._memory = judgement.PoolMemory()
        self._job_users: dict[str, str] = {}
        self._cancelling: set[str] = set()
        self._unwritten = self._untended = ""
        self._tried_s = self._tended_s = float("-inf")
        self.core = ledger.load(now())
        self.configure(config)

    @property
    def state(self) -> State:
        """All trainers and leases that callers may ask for."""
        return self.core

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
        self._tuned = _still_good(self.ledger.tuned())
        self.apply(Configured(self.now(), settings_of(config).changed(**self._tuned)))
        for name, told in status.tuned(self._tuned, config).items():
            if told["value"] != told["file"]:
                log.info(
                    "%s is %s as bft tune has set it, and %s of the configuration is hidden: see bft tune --reset",
                    *(name, told["value"], told["file"]),
                )

    def tune(self, changes: dict[str, Any]) -> None:
        """Change settings now and for every later start."""
        self._remember(self._tuned | changes)
        self.apply(Configured(self.now(), self.core.settings.changed(**changes)))

    def reset(self, names: Collection[str]) -> None:
        """Go back to the configuration with these keys, now and for every later start."""
        self._remember({name: value for name, value in self._tuned.items() if name not in names})
        file = {key.name: keys.value_of(self.config, key) for key in keys.tunable() if key.name in names}
        self.apply(Configured(self.now(), self.core.settings.changed(**file)))

    def _remember(self, tuned: dict[str, Any]) -> None:
        self.ledger.set_tuned(tuned)
        self._tuned = tuned

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one good snapshot."""
        leased = {lease.node: lease.job_id for lease in self.core.leases.values()}
        harvest = Harvest.of(self.partition)
        self._memory, view = judgement.observe(
            self._memory, snapshot, self.config.pool, harvest, leased, self.core.quarantined
        )
        self._job_users = {job.id: job.user for job in snapshot.jobs}
        self._cancelling &= self._job_users.keys()
        self.apply(PoolObserved(snapshot.time_s, view))

    def job_user(self, job_id: str) -> str | None:
        """Whose job that is, None when the last snapshot does not have it."""
        return self._job_users.get(job_id)

    def welcome(self, trainer_id: str) -> Welcome:
        """What the driver of a trainer is told that has just registered."""
        epoch = self.state.trainers[trainer_id].epoch
        return Welcome(epoch, self.poll_s, self.leases(trainer_id), self.greeting)

    def leases(self, trainer_id: str) -> Leases:
        """All that the driver of a trainer has to carry out."""
        return status.leases(self.state, self.state.trainers[trainer_id], self.config.pool)

    def overview(self, version: str) -> dict[str, Any]:
        """All of `GET /v1/status`."""
        last = self.ledger.decisions(None, 20)
        decisions = [{name: item[name] for name in ("at_s", "trainer", "text")} for item in last]
        shown = status.overview(self.state, self.now(), version, self.mode, decisions, self.ledger.give_backs_s())
        tuned = status.tuned(self._tuned, self.config)
        return shown | {"tuned": tuned, "ledger": self.ledger.size() | {"failure": self._unwritten or None}}

    def apply(self, *events: Event) -> None:
        """Fold events that come together into the state and carry out what follows from them.

        Raises LedgerError, with nothing changed, for a driver that registers while the ledger cannot be written: its
        number must survive us. Everything else is taken in without, but nothing grows until it is written.
        """
        before = self.core
        if not self._unwritten or not 0.0 <= self.now() - self._tried_s < RETRY_S:
            self._tried_s = self.now()
            try:
                self._settle(before, *self._folded(before, events))
            except LedgerError as error:
                self._tell_unwritten(str(error))
            else:
                self._tell_written()
                self._tend()
                return
        if any(isinstance(event, Registered) for event in events):
            raise LedgerError(self._unwritten)
        self._settle(before, *self._folded(before, events), owed=True)

    def _folded(self, before: State, events: Sequence[Event]) -> tuple[State, tuple[Action, ...]]:
        """The next state; while the ledger cannot be written nothing grows in it, whatever the pool says."""
        if self._unwritten:
            before = replace(before, pool=replace(before.pool, hold=UNWRITTEN))
            events = [
                replace(event, view=replace(event.view, hold=UNWRITTEN)) if isinstance(event, PoolObserved) else event
                for event in events
            ]
        return fold(before, events)

    def _tell_unwritten(self, error: str) -> None:
        if error != self._unwritten:
            log.error("%s; nothing grows until it can", error)
        self._unwritten = error

    def _tell_written(self) -> None:
        if self._unwritten:
            log.warning("the ledger is written again")
        self._unwritten = ""

    def _tend(self) -> None:
        """See to the ledger's size, about once a second."""
        now_s = self.now()
        if 0.0 <= now_s - self._tended_s < TEND_EVERY_S:
            return
        self._tended_s = now_s
        try:
            self.ledger.maintain(now_s)
        except LedgerError as error:
            if str(error) != self._untended:
                log.warning("old events are not dropped: %s", error)
            self._untended = str(error)
        else:
            self._untended = ""

    def _note(self, *actions: Action) -> None:
        """Write down what changes nothing."""
        try:
            self.ledger.save(self.core, self.core, actions)
        except LedgerError as error:
            self._tell_unwritten(str(error))
            self.ledger.owe(self.core, self.core, actions)

    def _settle(self, before: State, after: State, actions: Sequence[Action], owed: bool = False) -> None:
        """Write down what one step made of the core's state, or owe it, and carry it out."""
        (self.ledger.owe if owed else self.ledger.save)(before, after, actions)
        self.core = after
        for action in actions:
            if isinstance(action, Decided):
                log.info("%s", action.text)
            elif isinstance(action, LeaseChanged):
                log.debug("%s %s: %s", action.kind, action.lease.id, action.reason)
            elif isinstance(action, CancelPilot):
                whose = (
                    f"pilot {action.job_id} of trainer {action.trainer}" if action.trainer else f"job {action.job_id}"
                )
                # one that Slurm does not let us end comes again and again
                level = logging.DEBUG if action.job_id in self._cancelling else logging.WARNING
                log.log(level, "cancelling %s: %s", whose, action.reason)
        cancelled = [action for action in actions if isinstance(action, CancelPilot)]
        # apart: a stray job that Slurm does not let us end must not keep our trainers' pilots
        for ours in (True, False):
            if job_ids := [action.job_id for action in cancelled if (action.trainer is not None) == ours]:
                self._cancelling.update(job_ids)
                self._cancel(job_ids)
        self._wake_changed(before, after)

    def _wake_changed(self, before: State, after: State) -> None:
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
