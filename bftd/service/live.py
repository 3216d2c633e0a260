"""The one place where the core's state changes: events in, the ledger written, drivers woken, pilots cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
import grp
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bftd import keys
from bftd.core import clock as stored_times
from bftd.core.decisions import CancellingStopped, ForeignPilots, NodeOverdue
from bftd.core.domain import (
    Action,
    CancelPilot,
    ClockSet,
    Configured,
    Decided,
    Event,
    LeaseChanged,
    PoolObserved,
    Settings,
    State,
    Tick,
)
from bftd.core.step import fold
from bftd.errors import ConfigError
from bftd.keys import Config
from bftd.pool import judgement
from bftd.pool.harvest import Harvest
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Welcome
from bftd.service import status
from bftd.service.clock import Clock
from bftd.service.ledger import Ledger
from slurm_plugin.types import Snapshot

log = logging.getLogger("bftd")

# Under this name the ledger keeps by which words this daemon's pilots name it.
IDENTITY = "identity"
# Decisions that somebody has to look at.
_ALARMS = (NodeOverdue, CancellingStopped, ForeignPilots)


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


def _identities(ledger: Ledger) -> tuple[str, ...]:
    """The words by which pilots name this daemon, its own first: they stay with the ledger, wherever that is moved."""
    kept = tuple(str(word) for word in ledger.kept(IDENTITY).get("words", ()))
    if not kept:
        kept = (secrets.token_hex(4),)
        ledger.keep(IDENTITY, {"words": list(kept)})
    return kept


class Service:
    """The core with its ledger; used from the event loop's thread only.

    `cancel` is called with the job ids of pilots that overstay and must not block. `core` is what is decided on.
    `now` reads the wall clock, and `elapsed` one that nobody sets, by which a step of the other is noticed. `objection`
    says why the partition must not be harvested, "" where nothing speaks against it.
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
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.objection = ""
        self.stopping = False
        self._clock = Clock(now, elapsed)
        self._cancel = cancel
        self._changed: dict[str, asyncio.Event] = {}
        self._memory = judgement.PoolMemory()
        self._job_users: dict[str, str] = {}
        self._cancelling: set[str] = set()
        self.identities = _identities(ledger)
        now_s = now()
        loaded = ledger.load(now_s)
        self.core = stored_times.restored(loaded, now_s, config.pool.quarantine_s)
        ledger.save(loaded, self.core, ())
        ledger.prune(now_s)
        self.configure(config)

    def now(self) -> float:
        """The wall time; where it was set since the last call, all that is known moves with it first."""
        now_s, by_s = self._clock.look()
        if by_s:
            self._clock_was_set(now_s, by_s)
        return now_s

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
        settings = dataclasses.replace(settings_of(config), identities=frozenset(self.identities))
        tuned = settings.changed(**_still_good(self.ledger.tuned()))
        self.apply(Configured(self.now(), tuned, reloaded=True))

    def tune(self, changes: dict[str, Any]) -> None:
        """Change settings now and for every later start."""
        self.ledger.set_tuned(self.ledger.tuned() | changes)
        self.apply(Configured(self.now(), self.state.settings.changed(**changes)))

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one good snapshot."""
        if not self._is_timely(snapshot):
            return
        leased = {lease.node: lease.job_id for lease in self.core.leases.values()}
        harvest = Harvest.of(self.partition)
        self._memory, view = judgement.observe(
            self._memory, snapshot, self.config.pool, harvest, leased, self.core.quarantined
        )
        if self.objection:
            view = dataclasses.replace(view, hold=self.objection, refused=self.objection)
        self._job_users = {job.id: job.user for job in snapshot.jobs}
        self._cancelling &= self._job_users.keys()
        self.apply(PoolObserved(snapshot.time_s, view))

    def _is_timely(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot was taken by the clock as it is now; one from before it was set only lets time go on."""
        now_s = self.now()
        if self._clock.believes(snapshot.time_s):
            return True
        self.apply(Tick(now_s))
        return False

    def _clock_was_set(self, now_s: float, by_s: float) -> None:
        """Go on with all ages as they are: the time that was set has passed for nobody."""
        way = "forward" if by_s > 0 else "back"
        log.warning("the clock went %s by %.1f s at once: ages go on as they were", way, abs(by_s))
        self._memory = self._memory.moved(by_s)
        self.apply(ClockSet(now_s, by_s))

    def job_user(self, job_id: str) -> str | None:
        """Whose job that is, None when the last snapshot does not have it."""
        return self._job_users.get(job_id)

    def welcome(self, trainer_id: str) -> Welcome:
        """What the driver of a trainer is told that has just registered."""
        epoch = self.state.trainers[trainer_id].epoch
        return Welcome(epoch, self.poll_s, self.leases(trainer_id), self.greeting)

    def leases(self, trainer_id: str) -> Leases:
        """All that the driver of a trainer has to carry out."""
        return status.leases(self.state, self.state.trainers[trainer_id], self.config.pool, self.identities[0])

    def overview(self, version: str) -> dict[str, Any]:
        """All of `GET /v1/status`."""
        last = self.ledger.decisions(None, 20)
        decisions = [{name: item[name] for name in ("at_s", "trainer", "text")} for item in last]
        return status.overview(self.state, self.now(), version, self.mode, decisions, self.ledger.give_backs_s())

    def apply(self, *events: Event) -> None:
        """Fold events that come together into the state and carry out what follows from them."""
        before = self.core
        after, actions = fold(before, events)
        self._settle(before, after, actions)

    def _settle(self, before: State, after: State, actions: Sequence[Action]) -> None:
        """Write down what one step made of the core's state, and carry it out."""
        self.ledger.save(before, after, actions)
        self.core = after
        for action in actions:
            if isinstance(action, Decided):
                log.log(logging.WARNING if isinstance(action.decision, _ALARMS) else logging.INFO, "%s", action.text)
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
