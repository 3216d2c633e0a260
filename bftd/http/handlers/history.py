"""Handlers for the past: charts and tables, the pool's usage, and the trace with which other settings are tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bftd.http.auth.gate import caller_of
from bftd.http.auth.privacy import Privacy
from bftd.http.encoding import answered, encoded
from bftd.http.handlers.status import HISTORY
from bftd.http.request import SERVICE, RequestRefused, administrator, beside, number_of
from bftd.ledger import pool_trace
from bftd.ledger import usage as kept
from bftd.ledger.history import query
from bftd.ledger.reader import LedgerReader

# Far beyond the kept time, and exact in floats and SQLite's integers.
_LATEST_S = 1e11
# The past that is answered unless another time is asked for.
_DAY_S = 86_400.0


async def history(request: web.Request) -> web.Response:
    """Return nodes by state, trainers' sizes and node-seconds over time, as means of steps, and the use of the pool."""
    service = request.app[SERVICE]
    privacy = Privacy(caller_of(request), service.state, service.private)
    now_s = service.now()
    until_s = number_of(request, "until", now_s, _LATEST_S)
    since_s = number_of(request, "since", max(0.0, until_s - _DAY_S), _LATEST_S)
    if since_s >= until_s:
        raise RequestRefused(400, "since must be before until")
    step_s = number_of(request, "step", 0.0, _LATEST_S) or None
    trainers = request.query.get("trainers", "1")
    if trainers not in ("0", "1"):
        raise RequestRefused(400, f"trainers must be 0 or 1, not {trainers!r}")
    asked = query.HistoryRequest(since_s, until_s, now_s, step_s, trainers == "1", privacy.sees)
    windows = [window.to_json() for window in service.windows()]

    def look_up(ledger: LedgerReader) -> bytes:
        return _encoded(query.read(ledger, asked) | {"windows": windows})

    return answered(await request.app[HISTORY].look_up(request, look_up))


async def trace(request: web.Request) -> web.Response:
    """Return the changes of the pool since a time, with the trainers of that time; for administrators."""
    service = request.app[SERVICE]
    administrator(request, "read all trainers' past")
    state, now_s = service.state, service.now()
    since_s = number_of(request, "since", now_s - _DAY_S, _LATEST_S)

    def look_up(ledger: LedgerReader) -> bytes:
        return encoded(pool_trace.read(ledger, state, since_s, now_s))

    return answered(await request.app[HISTORY].look_up(request, look_up))


async def usage(request: web.Request) -> web.Response:
    """Return node-seconds since a time, by user, account or both: all of them for administrators, else one's own."""
    service, caller = request.app[SERVICE], caller_of(request)
    by = tuple(dict.fromkeys(request.query.get("by", "user").split(",")))
    if not set(by) <= set(kept.BY):
        raise RequestRefused(
            400, f"by must be {' or '.join(kept.BY)}, or both with a comma, not {request.query['by']!r}"
        )
    since_s = number_of(request, "since", 0.0, _LATEST_S)
    until_s = number_of(request, "until", service.now(), _LATEST_S)
    asked = kept.UsageRequest(since_s, until_s, by, None if caller.admin else caller.user)
    # in a thread with a connection of its own: reading months takes longer than the loop may wait
    usage_rows = await beside(request, lambda: kept.read(service.ledger.path, asked))
    return web.json_response(usage_rows)


def _encoded(answer: Mapping[str, Any]) -> bytes:
    """Encode the answer as JSON point by point: each may have hundreds of trainers, and other threads must run."""
    head = json.dumps({name: value for name, value in answer.items() if name != "points"})
    return f'{head[:-1]}, "points": [{", ".join(map(json.dumps, answer["points"]))}]}}'.encode()
