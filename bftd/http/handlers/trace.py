"""Handler for the pool's last hours and their trainers, with which administrators evaluate other settings."""

from __future__ import annotations

from aiohttp import web

from bftd.http.encoding import answered, encoded
from bftd.http.handlers.status import HISTORY
from bftd.http.request import SERVICE, administrator, number_of
from bftd.ledger import pool_trace

# A day, unless another time is asked for.
_DEFAULT_S = 86_400.0
_LATEST_S = 1e11


async def trace(request: web.Request) -> web.Response:
    """Return the changes of the pool since a time, with the trainers of that time; for administrators."""
    service = request.app[SERVICE]
    administrator(request, "read all trainers' past")
    state, now_s = service.state, service.now()
    since_s = number_of(request, "since", now_s - _DEFAULT_S, _LATEST_S)
    history = request.app[HISTORY]
    body = await history.look_up(request, lambda ledger: encoded(pool_trace.read(ledger, state, since_s, now_s)))
    return answered(body)
