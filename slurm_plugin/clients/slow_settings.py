"""The slowly changing parts of a snapshot: read in turns, a little at each snapshot, and kept in between.

Without reservations there is no snapshot. The other parts are unknown until first read, and keep their last value if
they cannot be read again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Set
from math import inf
from typing import Protocol

from slurm_plugin.clients.refresh_schedule import Reading, Turns
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read import parse, scheduler, scontrol_requests, sdiag
from slurm_plugin.read.scontrol_requests import ScontrolRequest
from slurm_plugin.read.settings import parse_config
from slurm_plugin.read.types import NO_SCHEDULER, Job, Partition, Reservation, Scheduler

RESERVATIONS, CONFIG, PARTITIONS, WISHES, LOAD = "reservations", "config", "partitions", "wishes", "load"
# Reservations and settings change only by an administrator. The load shows when backfill works next: it is read about
# once in each of its cycles, in turns that the others leave free.
READINGS = {
    RESERVATIONS: Reading(30.0, must=True),
    CONFIG: Reading(600.0, requests=2),  # the command pings the controller as well
    PARTITIONS: Reading(600.0),
    WISHES: Reading(300.0, requests=2, first=False),
    LOAD: Reading(30.0, prompt=True),
}
# Where only the answer about wishes tells which jobs share their nodes, new jobs are asked sooner, as far as that
# leaves the load its turns.
_SOONER = {**READINGS, WISHES: Reading(150.0, requests=2, first=False)}
# The delay from the time a cycle was due until sdiag is asked for it: most cycles are over by then.
_SETTLED_S = 1.0
_LIMIT_S = 2.0  # a snapshot waits no longer for its optional parts


class ReadCommand(Protocol):
    """A function that runs one of Slurm's reading commands; it raises SnapshotError for anything but a clean answer."""

    def __call__(self, command: str, *arguments: str, timeout_s: float | None = None) -> str: ...


class Background:
    """Reader through `ask`; `everywhere` are the options with which Slurm shows all partitions of this cluster."""

    def __init__(self, ask: ReadCommand, everywhere: tuple[str, ...], clock: Callable[[], float] = time.time) -> None:
        self.reservations: tuple[Reservation, ...] = ()
        self.partitions: Mapping[str, Partition] = {}
        self.scheduler: Scheduler = NO_SCHEDULER
        self._ask = ask
        self._clock = clock
        self._everywhere = everywhere
        self._turns = Turns(READINGS)
        self._config: Mapping[str, str] = {}
        self._knows_exclusive = False
        self._heard: Set[str] = frozenset()
        self._wishes: Mapping[str, ScontrolRequest] = {}
        self._granted: dict[str, tuple[Job, Job]] = {}

    def turn(self, now_s: float, jobs: tuple[Job, ...] = ()) -> str | None:
        """Return the part to read now, or None; RESERVATIONS come first.

        Wishes are read only if one of the pending `jobs` has not been checked for them. The load is not read before the
        next cycle, if its time is known.
        """
        unwanted = {LOAD} if self._awaits_cycle() else set()
        turn = self._turns.next(now_s, unwanted)
        if turn == WISHES and all(
            scontrol_requests.key(job.id) in self._heard for job in jobs if job.state == "PENDING"
        ):
            return self._turns.next(now_s, unwanted | {WISHES})
        return turn

    def _awaits_cycle(self) -> bool:
        """Whether the next cycle is known to lie ahead; a time beyond a whole interval comes from another clock."""
        known = self.scheduler
        ahead_s = -inf if known.due_s is None else known.due_s + _SETTLED_S - self._clock()
        return 0.0 < ahead_s <= known.interval_s + (known.cycle_s or 0.0) + _SETTLED_S

    def read(self, turn: str, now_s: float) -> None:
        """Read a part; only that of the reservations may raise SnapshotError, and is due again at once then."""
        if turn == RESERVATIONS:
            shown = self._ask("scontrol", "show", "reservation", "-o", *self._everywhere)
            self.keep_reservations(parse.reservations(shown), now_s)
            return
        try:
            if turn == WISHES:
                self._read_wishes()
            elif turn == PARTITIONS:
                shown = self._brief("scontrol", "show", "partition", "-o", *self._everywhere)
                self.partitions = parse.partitions(shown)
                if (knows := scontrol_requests.knows_exclusive(shown)) != self._knows_exclusive:
                    self._knows_exclusive, self._heard, self._granted = knows, frozenset(), {}
                    self._turns.readings = _SOONER if knows else READINGS
            elif turn == CONFIG:
                self._config = parse_config(self._brief("scontrol", "show", "config"))
                self.scheduler = scheduler.settings(self._config, self.scheduler)
            else:
                asked_s = self._clock()
                load = sdiag.parse(self._brief("sdiag"))
                self.scheduler = scheduler.with_load(self.scheduler, self._config, load, (asked_s, self._clock()))
        except SnapshotError:
            self._turns.done(turn, now_s, worked=False)
            if turn == LOAD:  # the time of the last cycle says less with every minute
                self.scheduler = scheduler.with_load(self.scheduler, self._config, None)
        else:
            self._turns.done(turn, now_s)

    def keep_reservations(self, found: tuple[Reservation, ...], now_s: float) -> None:
        """Keep reservations just read for this and the next snapshots."""
        self.reservations = found
        self._turns.done(RESERVATIONS, now_s)

    def granted(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """Return the jobs with the known wishes that squeue's format letters do not show.

        Where these no longer tell whether a job shares its nodes, one that was not asked yet does, as most jobs do.
        """
        if not self._wishes and not self._knows_exclusive:
            return jobs
        known = self._granted
        if len(known) > 2 * len(jobs):
            known.clear()
        found = []
        for job in jobs:
            if job.state == "PENDING":
                # an unchanged job is the same object as before, and so is its version with wishes
                before = known.get(job.id)
                if before is None or before[0] is not job:
                    asked = not self._knows_exclusive or scontrol_requests.key(job.id) in self._heard
                    otherwise = scontrol_requests.NONE if asked else scontrol_requests.SHARES
                    before = known[job.id] = (job, scontrol_requests.granted(job, self._wishes, otherwise))
                found.append(before[1])
            else:
                found.append(job)
        return tuple(found)

    def _read_wishes(self) -> None:
        separator = f"\x1f{secrets.token_hex(3)}"
        form = f"--Format={scontrol_requests.long_format(separator, self._knows_exclusive)}"
        found = scontrol_requests.read(self._brief("squeue", form, "--states=PENDING", *self._everywhere), separator)
        self._heard = found.keys()
        self._wishes = {job: wish for job, wish in found.items() if wish != scontrol_requests.NONE}
        self._granted = {}

    def _brief(self, command: str, *arguments: str) -> str:
        return self._ask(command, *arguments, timeout_s=_LIMIT_S)
