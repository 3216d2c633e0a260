"""The only place where the core's state changes: it takes events, writes the ledger, wakes drivers, cancels pilots."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import milp
from bftd.base.errors import LedgerError
from bftd.config import keys
from bftd.core.inputs import clock_shift as stored_times
from bftd.core.model import events as happening
from bftd.core.model.domain import Action, CancelPilot, Happened, Settings, State
from bftd.core.model.events import Event, PoolObserved, Registered, Tick
from bftd.core.model.pause import Pause, Paused, Unpaused
from bftd.core.planning.planning import Solve
from bftd.core.step import fold
from bftd.ledger.file import GIVE_BACKS, Ledger
from bftd.ledger.history.quota import HistoryQuota, is_history_of
from bftd.ledger.history.recorder import HistoryRecorder
from bftd.ledger.rolling import RollingPeriod
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Welcome
from bftd.service import admin_view, other_daemons, status, step_log
from bftd.service.clock import WallClock, local_zone
from bftd.service.earmark_log import EarmarkLog
from bftd.service.instrumentation import NO_METERS, Figures, Meters, metered
from bftd.service.judging import Judged, Judging
from bftd.service.settings import settings_of, still_good
from slurm_plugin.read.types import Snapshot

log = logging.getLogger("bftd")

# A trainer that registers is planned for at once while there are at most this many trainers and leases. Planning for
# more would block the loop for too long if many registered together: they wait for the next snapshot.
PLANNED_AT_ONCE_MOST = 500
# The reason for no growth while the ledger cannot be written, as drivers and users see it.
UNWRITTEN = "bftd cannot write its ledger"
# A ledger that could not be written is tried again after this long; each try may hold up the loop for a moment.
RETRY_S = 5.0
# The ledger's size is checked this often.
TEND_EVERY_S = 1.0


def _without_growth(event: Event) -> Event:
    if not isinstance(event, PoolObserved):
        return event
    return dataclasses.replace(event, view=dataclasses.replace(event.view, hold=UNWRITTEN))


class Service:
    """The core with its ledger; used from the event loop's thread only.

    `cancel` is called with the job ids of pilots that overstay and must not block. `core` is the state that decisions
    are made on. `now` reads the wall clock, and `elapsed` a clock that nobody sets, by which jumps of the wall clock
    are noticed. `objection` says why the partition must not be harvested ("" if it may), and `plugin_fault` why this
    host's Slurm does not load the SPANK plug-in.
    """

    mode = "live"
    # Whether Slurm hides users' jobs from one another (PrivateData): the API then does the same.
    private = False
    # A note that drivers get at registration beside their leases; none if it is empty.
    greeting = ""
    # The receiver of measurements, and the solver of plans.
    meters: Meters = NO_METERS
    solve: Solve = staticmethod(milp.solve)

    def __init__(
        self,
        config: keys.Config,
        ledger: Ledger,
        cancel: Callable[[list[str]], None],
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.objection = self.plugin_fault = ""
        self.stopping = False
        self._clock = WallClock(now, elapsed)
        self._cancel = cancel
        self._changed: dict[str, asyncio.Event] = {}
        self._memory = membership.PoolMemory()
        self._earmark_log = EarmarkLog()
        self._job_users: Mapping[str, str] = {}
        self._cancelling: set[str] = set()
        self._held_since_s: float | None = None
        self._unwritten = self._untended = ""
        self._tried_s = self._tended_s = float("-inf")
        self.tails: dict[str, tuple[str, ...]] = {}  # the last lines of trainers' logs, as their drivers send them
        self.identities = other_daemons.identities(ledger)
        loaded = ledger.load(now_s := now())
        self.core = stored_times.restored(loaded, now_s, config.pool.quarantine_s, steps_lost=ledger.may_lack_steps)
        if self.core != loaded:
            ledger.owe(loaded, self.core, ())
        self._quota = HistoryQuota()
        self.history = HistoryRecorder(ledger, self.core)
        self._give_backs_s = deque(reversed(ledger.give_backs_s()), maxlen=GIVE_BACKS)
        self.configure(config)
        for pause in admin_view.pauses(self.core):
            log.warning("still in force: %s", pause["text"])

    def now(self) -> float:
        """Return the wall time; if it was set since the last call, all stored times move with it first."""
        now_s, by_s = self._clock.look()
        if by_s:
            self._clock_was_set(now_s, by_s)
        return now_s

    @property
    def state(self) -> State:
        """The state with all trainers and leases that callers may ask about."""
        return self.core

    @property
    def partition(self) -> str:
        """The harvested partitions, for people."""
        return ", ".join(self.partitions)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The harvested partitions."""
        return self.config.slurm.harvested

    @property
    def poll_s(self) -> float:
        """The time between two snapshots."""
        return self.config.slurm.poll_s

    def configure(self, config: keys.Config) -> None:
        """Apply another configuration; settings of `bft tune` stay."""
        self.config = config
        self._tuned = still_good(self.ledger.tuned())
        settings = settings_of(config, local_zone(self.now()))
        settings = dataclasses.replace(settings, identities=frozenset(self.identities))
        self._take_settings(settings.changed(**self._tuned), reloaded=True)
        for name, setting in status.tuned(self._tuned, config).items():
            if setting["value"] != setting["file"]:
                log.info(
                    "%s is %s as bft tune has set it, and %s of the configuration is hidden: see bft tune --reset",
                    *(name, setting["value"], setting["file"]),
                )

    def tune(self, changes: dict[str, Any]) -> None:
        """Change settings now and for every later start."""
        self._remember(self._tuned | changes)
        self._take_settings(self.core.settings.changed(**changes))

    def _take_settings(self, settings: Settings, reloaded: bool = False) -> None:
        """Decide by other settings from now on."""
        both = settings.limits.nodes_per_user and settings.limits.nodes_per_account
        milp.prepare(settings.decide.solver, frozenset({milp.Feature.CROSSING_CAPS} if both else ()))
        self.apply(happening.Configured(self.now(), settings, reloaded))

    def reset(self, names: Collection[str]) -> None:
        """Reset these keys to the configuration's values, now and for every later start."""
        self._remember({name: value for name, value in self._tuned.items() if name not in names})
        file = {key.name: keys.value_of(self.config, key) for key in keys.tunable() if key.name in names}
        self._take_settings(self.core.settings.changed(**file))

    def _remember(self, tuned: dict[str, Any]) -> None:
        self.ledger.set_tuned(tuned)
        self._tuned = tuned

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one good snapshot at once."""
        self.observe_later(snapshot)()()

    def observe_later(self, snapshot: Snapshot) -> Callable[[], Callable[[], None]]:
        """Return a function that judges the snapshot, in any thread, and returns the function that takes it in.

        There must be no other snapshot until it is taken in.
        """
        if not self._is_timely(snapshot):
            return lambda: lambda: None  # it is from before the clock was set
        judging = Judging(self._memory, snapshot, self.config.pool, Harvest.of(*self.partitions), self.core)
        return lambda: functools.partial(self._take_in, judging.judged())

    def _take_in(self, judged: Judged) -> None:
        """Take in what a snapshot shows, even if time has passed since it was judged."""
        now_s = self.now()
        if self._memory is not judged.before:  # the clock was set, and the judged snapshot has the old times
            self.apply(Tick(now_s))
            return
        self._memory, view = judged.by_now(self.core)
        if self.objection:
            view = dataclasses.replace(view, hold=self.objection, refused=self.objection)
        self._earmark_log.tell(self._memory.earmarks, view)
        self._job_users = judged.users
        self._cancelling &= judged.users.keys()
        self.apply(PoolObserved(view.time_s, view))

    def pause(self, pauses: Sequence[Pause]) -> int:
        """Pause lending as `pauses` say, from now on; returns how many nodes are asked back."""
        before = self.core.leases
        self.apply(Paused(self.now(), tuple(pauses)))
        return sum(lease.vacate and not before[id_].vacate for id_, lease in self.core.leases.items())

    def resume(self, by: str, keys: Sequence[str]) -> None:
        """Lift pauses."""
        self.apply(Unpaused(self.now(), by, tuple(keys)))

    def _is_timely(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot was taken since the clock was last set; if not, only the time advances."""
        now_s = self.now()
        if self._clock.believes(snapshot.time_s):
            return True
        self.apply(Tick(now_s))
        return False

    def _clock_was_set(self, now_s: float, by_s: float) -> None:
        """Keep all ages as they are: the time by which the clock was set has not really passed."""
        way = "forward" if by_s > 0 else "back"
        log.warning("the clock went %s by %.1f s at once: ages go on as they were", way, abs(by_s))
        self._memory = self._memory.moved(by_s)
        self._quota.move(by_s)
        self.history.move(by_s)
        if self._held_since_s is not None:
            self._held_since_s += by_s
        self.apply(happening.ClockSet(now_s, by_s))

    def windows(self) -> tuple[RollingPeriod, ...]:
        """Return the windows of the last hour, day and week, up to a minute old; () while they are not known."""
        return self.history.windows(self.state.usage)

    def job_user(self, job_id: str) -> str | None:
        """Return the user of a job, None if the last snapshot does not have it."""
        return self._job_users.get(job_id)

    def welcome(self, trainer_id: str) -> Welcome:
        """Return the answer to the driver of a trainer that has just registered."""
        trainer = self.state.trainers[trainer_id]
        listed, kinds = self.leases(trainer_id), status.kinds(self.state, trainer)
        return Welcome(trainer.epoch, self.poll_s, listed, self.greeting, kinds)

    def leases(self, trainer_id: str) -> Leases:
        """Return everything that the driver of a trainer has to carry out."""
        now_s = self.now()  # before anything else is looked at: if the clock was set, all times move
        trainer = self.state.trainers[trainer_id]
        return status.leases(self.state, trainer, self.config, now_s, self.identities[0])

    def figures(self) -> Figures:
        """Return the values shown as metrics beside those measured; cheap."""
        ledger, failure = self.ledger.size(), self._unwritten
        now_s = self.now()
        written = self.ledger.written_bytes
        return Figures(self.state, now_s, self.mode, ledger, failure, written, self.windows(), self.plugin_fault)

    def overview(self, version: str) -> dict[str, Any]:
        """Return all of `GET /v1/status`."""
        return self.overview_later(version)()

    def overview_later(self, version: str) -> Callable[[], dict[str, Any]]:
        """Return a function that makes all of `GET /v1/status` of the present state, in any thread."""
        last = self.ledger.decisions(None, 20)
        decisions = [{name: item[name] for name in ("at_s", "trainer", "text")} for item in last]
        state, now_s, give_backs_s = self.state, self.now(), tuple(self._give_backs_s)
        settings = {
            "tuned": status.tuned(self._tuned, self.config),
            "windows": [window.to_json() for window in self.windows()],
        }
        more = self.condition() | settings
        return lambda: status.overview(state, now_s, version, self.mode, decisions, give_backs_s) | more

    def condition(self) -> dict[str, Any]:
        """Return how long nothing has grown, the ledger's condition, and everything that needs attention."""
        now_s = self.now()
        held_s = 0.0 if self._held_since_s is None else now_s - self._held_since_s
        return {
            "held_s": held_s,
            "ledger": self.ledger.size() | {"failure": self._unwritten or None},
            "alarms": admin_view.alarms(self.core, now_s, self.plugin_fault),
        }

    def _reporting_user(self, events: Sequence[Event], state: State) -> str | None:
        """Return the user whose driver sent all these events; None for other events and for administrators."""
        users = set()
        for event in events:
            if isinstance(event, Registered):
                users.add(event.request.user)
            elif (
                isinstance(event, (happening.Heard, happening.Reported, happening.Finished))
                and event.trainer in state.trainers
            ):
                users.add(state.trainers[event.trainer].user)
            else:
                return None
        return None if len(users) != 1 or users & state.settings.spared else users.pop()

    def apply(self, *events: Event) -> None:
        """Fold events that come together into the state and carry out what follows from them.

        While the ledger cannot be written, a driver's registration raises LedgerError with nothing changed, because its
        number must survive this process. Everything else is taken in, but nothing grows until it is written.
        """
        now_s = self.now()
        events = tuple(self._timed(event, now_s) for event in events)
        if not self._unwritten or not 0.0 <= now_s - self._tried_s < RETRY_S:
            self._tried_s = now_s
            try:
                self._take(events, now_s)
            except LedgerError as error:
                self._log_unwritten(str(error))
            else:
                self._log_written()
                self.history.note(self.core)
                self._tend()
                return
        if any(isinstance(event, Registered) for event in events):
            raise LedgerError(self._unwritten)
        self._take(events, now_s, owed=True)
        self.history.note(self.core, owed=True)

    def _timed(self, event: Event, now_s: float) -> Event:
        """Return the event by the present clock, which may have been set since; an old snapshot becomes a mere tick."""
        if self._clock.believes(event.time_s):
            return event
        return Tick(now_s) if isinstance(event, PoolObserved) else dataclasses.replace(event, time_s=now_s)

    def _take(self, events: Sequence[Event], now_s: float, owed: bool = False) -> None:
        """Fold events into the state, and write the result as far as the reporting user's share of history allows."""
        before, begun_s = self.core, time.perf_counter()
        after, actions = self._folded(before, events)
        took_s, written_down = time.perf_counter() - begun_s, actions
        user, written = self._reporting_user(events, after), self.ledger.history_bytes
        if user is not None and self._quota.is_spent(user, now_s):
            written_down = tuple(action for action in actions if not is_history_of(user, action, after))
        self._settle(before, after, written_down, owed)
        if user is not None:
            self._quota.spend(user, self.ledger.history_bytes - written, now_s)
        self.meters.stepped(before, after, events, actions, took_s)
        if after.pool.classes is not before.pool.classes:
            step_log.classes(before.pool.classes, after.pool.classes)

    def _folded(self, before: State, events: Sequence[Event]) -> tuple[State, tuple[Action, ...]]:
        """Return the next state; while the ledger cannot be written nothing grows in it, whatever the pool says."""
        if self._unwritten:
            before = dataclasses.replace(before, pool=dataclasses.replace(before.pool, hold=UNWRITTEN))
            events = [_without_growth(event) for event in events]
        few = len(before.trainers) + len(before.leases) <= PLANNED_AT_ONCE_MOST
        solve = metered(self.solve, self.meters)
        return fold(before, events, solve, plan=few or any(not isinstance(event, Registered) for event in events))

    def _log_unwritten(self, error: str) -> None:
        if error != self._unwritten:
            log.error("%s; nothing grows until it can", error)
        self._unwritten = error

    def _log_written(self) -> None:
        if self._unwritten:
            log.warning("the ledger is written again")
        self._unwritten = ""

    def _tend(self) -> None:
        """Do the ledger's upkeep, about once a second."""
        now_s = self.now()
        if 0.0 <= now_s - self._tended_s < TEND_EVERY_S:
            return
        self._tended_s = now_s
        try:
            self.ledger.maintain(now_s)
            self.history.tend(now_s)
        except LedgerError as error:
            if str(error) != self._untended:
                log.warning("old events are not dropped: %s", error)
            self._untended = str(error)
        else:
            self._untended = ""

    def _note(self, *actions: Action) -> None:
        """Write actions that change nothing in the state."""
        try:
            self.ledger.save(self.core, self.core, actions)
        except LedgerError as error:
            self._log_unwritten(str(error))
            self.ledger.owe(self.core, self.core, actions)

    def _settle(self, before: State, after: State, actions: Sequence[Action], owed: bool = False) -> None:
        """Write one step's changes of the core's state, or owe them, and carry out its actions."""
        (self.ledger.owe if owed else self.ledger.save)(before, after, actions)
        self.core = after
        self._held_since_s = None if after.pool.hold is None else self._held_since_s or after.time_s
        for action in actions:
            if isinstance(action, Happened) and action.kind == "give_back":
                self._give_backs_s.append(float(action.data["duration_s"]))
            step_log.log_action(action, self._cancelling)
        cancelled = [action for action in actions if isinstance(action, CancelPilot)]
        # separately: an orphan job that Slurm does not let us cancel must not protect our trainers' pilots
        for ours in (True, False):
            if job_ids := [action.job_id for action in cancelled if (action.trainer is not None) == ours]:
                self._cancelling.update(job_ids)
                self._cancel(job_ids)
        self._wake_changed(before, after)

    def _wake_changed(self, before: State, after: State) -> None:
        for id_, trainer in after.trainers.items():
            known = before.trainers.get(id_)
            if known is trainer:
                continue
            if known is None or (known.version, known.epoch, known.state) != (
                trainer.version,
                trainer.epoch,
                trainer.state,
            ):
                self._wake(id_)

    def changed(self, trainer: str) -> asyncio.Event:
        """Return an event that is set when the trainer's leases, driver or state change after this call."""
        return self._changed.setdefault(trainer, asyncio.Event())

    def stop(self) -> None:
        """Let every waiting driver go, and record the final state in the history."""
        self.stopping = True
        self.history.note(self.core, owed=bool(self._unwritten), last=True)
        for trainer in list(self._changed):
            self._wake(trainer)

    def _wake(self, trainer: str) -> None:
        event = self._changed.pop(trainer, None)
        if event is not None:
            event.set()
