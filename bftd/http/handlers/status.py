"""Handlers for people's requests: the status, explanations, events, and tuning."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

from bftd.http import schemas
from bftd.http.auth.gate import caller_of
from bftd.http.auth.privacy import Privacy
from bftd.http.connections import UNREAD_BYTES_MOST
from bftd.http.encoding import answered, encoded
from bftd.http.overview import Overviews
from bftd.http.request import CONNECTIONS, SERVICE, RequestRefused, administrator, body_of, number_of
from bftd.ledger.reader import LedgerReader, TooSlow
from bftd.service import status as shown_status
from bftd.service.service import Service

# The most events or decisions of the ledger in one answer.
MOST_EVENTS = 10_000
# The most look-ups of one user at once: others' questions must not wait for all of theirs.
LOOKED_UP_AT_ONCE_MOST = 2

OVERVIEWS: web.AppKey[Overviews] = web.AppKey("overviews", Overviews)
_T = TypeVar("_T")


async def explain(request: web.Request) -> web.Response:
    """Return one trainer, and the last sentences about it."""
    id_ = request.match_info["id"]
    limit = int(number_of(request, "limit", 50.0, MOST_EVENTS))
    told = trainer_question(request.app[SERVICE], _privacy(request), id_, limit)
    return await explained(request, told, f"no trainer {id_} is known: `bft status` lists those there are")


async def explained(
    request: web.Request, told: Callable[[LedgerReader], dict[str, Any] | None], why_not: str
) -> web.Response:
    """Return what a look-up tells; raises RequestRefused with `why_not` where it tells None."""

    def look_up(ledger: LedgerReader) -> bytes | None:
        found = told(ledger)
        return None if found is None else encoded(found)

    answer = await request.app[HISTORY].look_up(request, look_up)
    if answer is None:
        raise RequestRefused(404, why_not)
    return answered(answer)


def trainer_question(
    service: Service, privacy: Privacy, id_: str, limit: int
) -> Callable[[LedgerReader], dict[str, Any] | None]:
    """Return a look-up of one trainer and the last decisions about it; it gives None for one not known to the caller.

    The present state is read now, on the loop; the look-up may run in any thread.
    """
    trainer = service.state.trainers.get(id_)
    node = id_ in service.state.pool.nodes  # the word may name both
    shown = None
    if trainer is not None:
        shown = privacy.trainer(shown_status.trainer(service.state, trainer))
        shown |= {"resize_costs": shown_status.resize_costs(service.state, trainer)}
        shown |= {"curve": shown_status.curve(trainer)}
        shown |= {"tail": list(service.tails.get(id_, ())) if privacy.owns(trainer.user) else []}

    def look_up(ledger: LedgerReader) -> dict[str, Any] | None:
        user = trainer.user if trainer is not None else ledger.owner(id_) if privacy.hides else None
        if not privacy.sees(user):
            return None  # as if it did not exist
        decisions = [privacy.data(decision) for decision in ledger.decisions(id_, limit)]
        return {"trainer": shown, "decisions": decisions, "is_node": node} if decisions or shown else None

    return look_up


async def status(request: web.Request) -> web.Response:
    """Return what everybody may see, as with squeue: who trains where, but not how well, except to its user."""
    _refuse_unread(request)
    nodes = request.query.get("nodes", "")
    return answered(await request.app[OVERVIEWS].answer(request.app[SERVICE], caller_of(request), nodes))


async def tune(request: web.Request) -> web.Response:
    """Change tunable keys, or with `reset` return to the configuration's values; for administrators."""
    service = request.app[SERVICE]
    administrator(request, "tune the daemon")
    body = await body_of(request)
    names = schemas.reset(body)
    if names is None:
        service.tune(schemas.tuned(body))
    else:
        service.reset(names)
    return web.json_response({"settings": shown_status.settings(service.state.settings)})


async def events(request: web.Request) -> web.Response:
    """Return the ledger's events: all of them for administrators, else those of the caller's own trainers."""
    service, caller, privacy = request.app[SERVICE], caller_of(request), _privacy(request)
    after, limit = int(number_of(request, "after", 0.0, 1e15)), int(number_of(request, "limit", 1000.0, MOST_EVENTS))
    since_s = number_of(request, "since", 0.0, 1e11)
    own = None if caller.admin else [item.id for item in service.state.trainers.values() if item.user == caller.user]

    def look_up(ledger: LedgerReader) -> bytes:
        behind = max(after, ledger.before(since_s)) if since_s else after
        if privacy.hides:
            return encoded({"events": [privacy.data(event) for event in ledger.events(behind, limit, own)]})
        return ledger.events_json(behind, limit, own)

    return answered(await request.app[HISTORY].look_up(request, look_up))


class LedgerQueries:
    """A thread that reads the ledger beside the loop, for each user a few questions at a time."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._threads = ThreadPoolExecutor(1, "history")
        self._asked: Counter[Hashable] = Counter()

    async def look_up(self, request: web.Request, work: Callable[[LedgerReader], _T]) -> _T:
        """Return the result of `work`, run in the thread."""
        _refuse_unread(request)
        asks = caller_of(request).uid
        if self._asked[asks] >= LOOKED_UP_AT_ONCE_MOST:
            raise RequestRefused(429, "the ledger is being read for you already: wait for the answer")
        self._asked[asks] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._ledger)
        except TooSlow as error:
            raise RequestRefused(503, str(error)) from None
        finally:
            self._asked[asks] -= 1
            self._asked += Counter()  # drops entries that are zero

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)


HISTORY: web.AppKey[LedgerQueries] = web.AppKey("history", LedgerQueries)


def _privacy(request: web.Request) -> Privacy:
    service = request.app[SERVICE]
    return Privacy(caller_of(request), service.state, service.private)


def _refuse_unread(request: web.Request) -> None:
    """Refuse a request while large answers to its caller are unread: they would pile up here."""
    if request.app[CONNECTIONS].unread_bytes(request.transport) > UNREAD_BYTES_MOST:
        raise RequestRefused(429, "read the answers that are on their way before asking for more")
