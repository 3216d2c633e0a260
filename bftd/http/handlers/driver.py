"""Handlers for drivers' requests: registration, leases, reports and the end of a trainer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from aiohttp import web

from bftd.core.model.domain import Trainer
from bftd.core.model.events import Finished, Heard, Registered, Reported
from bftd.http import schemas
from bftd.http.auth.caller import Caller
from bftd.http.auth.gate import caller_of
from bftd.http.auth.ownership import objection
from bftd.http.auth.privacy import Privacy
from bftd.http.encoding import answered, encoded
from bftd.http.note_limit import Notes
from bftd.http.request import SERVICE, RequestRefused, apply, beside, body_of, number_of, own_trainer, turn
from bftd.protocol.bounds import EPOCHS_OF_A_BLOCK
from bftd.protocol.fields import Fields
from bftd.protocol.lease import Leases
from bftd.protocol.reports import Finish, Report, report_from_json, reports_of, tail_of
from bftd.service import status
from bftd.service.service import Service

POLLS: web.AppKey[Counter[str]] = web.AppKey("polls", Counter)
NOTES: web.AppKey[Notes] = web.AppKey("notes", Notes)

# Longer waits would make a lost driver look alive, shorter ones only cost requests.
LONGEST_WAIT_S = 30.0
# Far more than anybody trains at once; these only bound what one user can make the daemon remember and wait for. A
# driver has one long poll, and for a while those that it lost with their connections.
MOST_TRAINERS_OF_A_USER = 500
MOST_POLLS_OF_A_TRAINER = 16
# A list of at most this many leases is encoded at once, a longer one beside the loop.
_FEW = 100
# The target time of a slice of reports: its size is adapted to how long the last one took.
_SLICE_S = 0.005
_FIRST_SLICE = 16
_MOST_SLICE = 500
# The trainers, and the drivers of each, whose registrations are remembered.
_MOST_TRAINERS = 10_000
_MOST_DRIVERS = 16

_T = TypeVar("_T")


async def register(request: web.Request) -> web.Response:
    """Register a trainer, or a driver of a known one."""
    service = request.app[SERVICE]
    caller = caller_of(request)
    body, user = await body_of(request), None if caller.admin else caller.user
    asked = await beside(request, lambda: schemas.registration(body, service.partitions, user))
    await turn(request)
    known = service.state.trainers.get(asked.id)
    owners = service.job_user(asked.id), known.user if known else None
    uid, private = None if caller.admin else caller.uid, service.private and not caller.admin
    why_not = objection(asked.id, asked.user, *owners, uid=uid, private=private)
    if why_not is not None:
        raise RequestRefused(*why_not)
    if known is None and not caller.admin:
        _check_number(service, caller)
    fields, now_s = Fields(body, "trainer"), service.now()
    code = fields.whole("exit_code", None)  # of a driver that cannot begin: nothing is planned for it
    ended = [] if code is None else [Finished(now_s, asked.id, code, fields.text("reason", ""))]
    drivers, driver = request.app[DRIVERS], fields.name("driver", "")
    attempt = fields.whole("restarts", 0), fields.whole("attempt", 0)
    if known is None or not drivers.is_late(asked.id, driver, attempt):
        apply(request, Registered(now_s, asked), *ended)
        drivers.took(asked.id, driver, attempt, service.state.trainers)
    welcome = service.welcome(asked.id)  # built now: another driver may come meanwhile
    welcome = replace(welcome, listed=_listed(request, welcome.listed))
    return answered(await beside(request, lambda: encoded(welcome.to_json())))


def _check_number(service: Service, caller: Caller) -> None:
    has = sum(trainer.user == caller.user for trainer in service.state.trainers.values())
    if has >= MOST_TRAINERS_OF_A_USER:
        raise RequestRefused(
            429, f"{caller.user} has {has} trainers, those of the last hour included: wait until some are forgotten"
        )


async def leases(request: web.Request) -> web.Response:
    """Long poll: answer when the list of leases differs from the driver's, or when the wait is over."""
    polls, id_ = request.app[POLLS], request.match_info["id"]
    if polls[id_] >= MOST_POLLS_OF_A_TRAINER:
        raise RequestRefused(429, f"trainer {id_} is asked for {polls[id_]} times at once: its driver asks once")
    polls[id_] += 1
    try:
        return await _poll(request)
    finally:
        polls[id_] -= 1
        polls += Counter()  # drops entries that are zero


async def _poll(request: web.Request) -> web.Response:
    service, trainer = own_trainer(request)
    epoch = int(number_of(request, "epoch", -1.0 if "epoch" not in request.query else 0.0, 1e15))
    version = int(number_of(request, "version", 0.0, 1e15))
    _check_epoch(trainer, epoch)
    apply(request, Heard(service.now(), trainer.id))
    end = asyncio.get_running_loop().time() + min(number_of(request, "wait_s", 0.0, 1e9), LONGEST_WAIT_S)
    while not service.stopping:
        changed = service.changed(trainer.id)
        current = service.state.trainers.get(trainer.id)
        if current is None:
            raise RequestRefused(404, f"trainer {trainer.id} is no longer known: its driver must register")
        _check_epoch(current, epoch)
        left_s = end - asyncio.get_running_loop().time()
        if current.version != version or left_s <= 0:
            break
        try:
            await asyncio.wait_for(changed.wait(), left_s)
        except asyncio.TimeoutError:
            continue
    if service.stopping:
        raise RequestRefused(503, "the daemon is stopping: ask again")
    apply(request, Heard(service.now(), trainer.id))
    listed = _listed(request, service.leases(trainer.id))
    if len(listed.leases) <= _FEW:
        return answered(encoded(listed.to_json()))
    return answered(await beside(request, lambda: encoded(listed.to_json())))


def _listed(request: web.Request, listed: Leases) -> Leases:
    """Return the leases with reasons that do not name others' jobs and trainers, if the user may not know them."""
    service = request.app[SERVICE]
    privacy = Privacy(caller_of(request), service.state, service.private)
    if not privacy.hides:
        return listed
    texts = {reason: privacy.text(reason) for reason in {lease.reason for lease in listed.leases}}
    return replace(listed, leases=tuple(replace(lease, reason=texts[lease.reason]) for lease in listed.leases))


async def report(request: web.Request) -> web.Response:
    """Take reports of what happened: all are parsed before any of them counts."""
    service, trainer = own_trainer(request)
    body = await body_of(request)
    epoch, items = reports_of(body)
    reports: list[Report] = []
    slices = _Slices(items, request)
    while some := slices.take():
        reports += map(report_from_json, some)
        await slices.rest()
    taken = request.app[NOTES].taken(trainer.id, reports, asyncio.get_running_loop().time())
    left = _Slices(taken, request)
    while True:
        _, current = own_trainer(request)  # while others were served the trainer may have ended, or got a newer driver
        _check_epoch(current, epoch)
        if not (part := left.take()):
            break
        apply(request, Reported(service.now(), trainer.id, tuple(part)))
        await left.rest()
    if (tail := tail_of(body)) is not None:
        service.tails = {id_: lines for id_, lines in service.tails.items() if id_ in service.state.trainers}
        service.tails[trainer.id] = tail
    answer = status.taken(service.state, service.state.trainers[trainer.id])
    return web.json_response(answer.to_json())


async def finish(request: web.Request) -> web.Response:
    """End a trainer."""
    service, trainer = own_trainer(request)
    report = Finish.from_json(await body_of(request))
    if report.epoch == trainer.epoch and not trainer.active:
        return web.json_response({})  # the answer to an earlier try was lost
    _check_epoch(trainer, report.epoch)
    apply(request, Finished(service.now(), trainer.id, report.exit_code, report.reason, report.summary))
    return web.json_response({})


def _check_epoch(trainer: Trainer, epoch: int) -> None:
    if epoch // EPOCHS_OF_A_BLOCK != trainer.epoch // EPOCHS_OF_A_BLOCK:
        raise RequestRefused(404, f"the registration of trainer {trainer.id} may be lost: its driver must register")
    if epoch != trainer.epoch:
        raise RequestRefused(
            409, f"trainer {trainer.id} has a newer driver (epoch {trainer.epoch}, yours is {epoch}): stop"
        )
    if not trainer.active:
        raise RequestRefused(409, f"trainer {trainer.id} has finished: register again to go on")


class Drivers:
    """The drivers of each trainer by the words that they drew, in the order of their first registrations.

    A registration can come late, after others that were sent later, if its connection was given up and its bytes were
    not. An older driver sends no word: each of its registrations counts. An attempt is how often Slurm had started the
    driver's job again, and the number of the driver's try.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, tuple[int, int]]] = {}

    def is_late(self, trainer: str, driver: str, attempt: tuple[int, int]) -> bool:
        """Whether this driver has registered by a later attempt; raises RequestRefused if another driver came since."""
        known = self._attempts.get(trainer, {})
        newest, (restarts, _) = next(reversed(known.items()), (driver, attempt))
        if driver and driver != newest and (driver in known or attempt[0] < restarts):
            raise RequestRefused(409, f"trainer {trainer} has a newer driver: stop")
        return driver in known and attempt <= known[driver]

    def took(self, trainer: str, driver: str, attempt: tuple[int, int], trainers: Container[str]) -> None:
        """Note a registration that counted; `trainers` are those that are known."""
        if len(self._attempts) >= _MOST_TRAINERS:
            self._attempts = {id_: known for id_, known in self._attempts.items() if id_ in trainers}
        if driver:
            known = self._attempts.setdefault(trainer, {})
            known[driver] = attempt
            while len(known) > _MOST_DRIVERS:
                del known[next(iter(known))]


DRIVERS: web.AppKey[Drivers] = web.AppKey("drivers", Drivers)


class _Slices(Generic[_T]):
    """Long work done a slice at a time, so that the loop serves others: `take` the next items, work, and `rest`."""

    def __init__(self, items: Sequence[_T], request: web.Request) -> None:
        self._items = items
        self._request = request
        self._at, self._size = 0, _FIRST_SLICE
        self._begun_s = 0.0

    def take(self) -> Sequence[_T]:
        """Return the next slice; empty at the end."""
        self._begun_s = time.perf_counter()
        taken = self._items[self._at : self._at + self._size]
        self._at += len(taken)
        return taken

    async def rest(self) -> None:
        """Let others be served, if there is more to do."""
        took_s = max(time.perf_counter() - self._begun_s, 1e-6)
        self._size = max(1, min(_MOST_SLICE, 2 * self._size, int(self._size * _SLICE_S / took_s)))
        if self._at < len(self._items):
            await turn(self._request)
