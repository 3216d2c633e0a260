"""Access of handlers to a request: its body, its query, its caller's trainer; and the refusal of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from bftd.base.errors import BftError
from bftd.core.model.domain import Trainer
from bftd.core.model.events import Event
from bftd.http.auth.caller import Caller
from bftd.http.auth.gate import caller_of
from bftd.http.body import BodyRefused, decoded
from bftd.http.connections import ApiConnections
from bftd.http.rate_limit import WRITTEN_BYTES_PER_UNIT, Budgets
from bftd.service.service import Service

SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
CONNECTIONS: web.AppKey[ApiConnections] = web.AppKey("connections", ApiConnections)
THREADS: web.AppKey[ThreadPoolExecutor] = web.AppKey("threads", ThreadPoolExecutor)
BUDGETS: web.AppKey[Budgets] = web.AppKey("budgets", Budgets)


_T = TypeVar("_T")


class RequestRefused(BftError):
    """A refusal of a request, with an HTTP status and one line."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status = status_code


async def body_of(request: web.Request) -> object:
    """Return the decoded body; raises Refused if it is not JSON or too large."""
    try:
        return await decoded(request)
    except BodyRefused as error:
        raise RequestRefused(error.status, str(error)) from None


async def turn(request: web.Request) -> None:
    """Wait until it is the caller's turn again."""
    await request.app[CONNECTIONS].turn(request.transport)


async def beside(request: web.Request, work: Callable[[], _T]) -> _T:
    """Run `work` in a thread and return its result: large data is read and written beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(request.app[THREADS], work)


def apply(request: web.Request, *events: Event) -> None:
    """Have the core take a request's events, and charge the caller for what that writes to the ledger."""
    service, caller = request.app[SERVICE], caller_of(request)
    before = service.ledger.written_bytes
    service.apply(*events)
    written = service.ledger.written_bytes - before
    if written and caller.uid is not None and not caller.admin:
        now_s = asyncio.get_running_loop().time()
        request.app[BUDGETS].charge(caller.uid, written / WRITTEN_BYTES_PER_UNIT, now_s)


def administrator(request: web.Request, may: str) -> Caller:
    """Return the caller; raises Refused for anybody but an administrator; `may` says what only those may do."""
    caller = caller_of(request)
    if not caller.admin:
        raise RequestRefused(403, f"only administrators may {may}, and {caller.user} is none ([daemon] administrators)")
    return caller


def own_trainer(request: web.Request) -> tuple[Service, Trainer]:
    """Return the service and the trainer of the URL; raises Refused if the caller may not act on it."""
    service = request.app[SERVICE]
    caller = caller_of(request)
    id_ = request.match_info["id"]
    trainer = service.state.trainers.get(id_)
    if trainer is None:
        raise RequestRefused(404, f"no trainer {id_} is known: its driver must register")
    if not caller.admin and caller.user != trainer.user:
        whose = "another user" if service.private else trainer.user
        raise RequestRefused(403, f"trainer {id_} belongs to {whose}, not to {caller.user}")
    return service, trainer


def number_of(request: web.Request, name: str, default: float, most: float) -> float:
    """Return a number from the query, from 0 to `most`; raises Refused."""
    try:
        value = float(request.query.get(name, default))
    except ValueError:
        value = float("nan")
    if not 0 <= value <= most:
        raise RequestRefused(400, f"{name} must be a number from 0 to {most:g}, not {request.query.get(name)!r}")
    return value
