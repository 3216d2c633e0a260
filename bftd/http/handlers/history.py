"""Handler for the history of nodes and trainers, for charts and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bftd.http.auth.gate import caller_of
from bftd.http.auth.privacy import Privacy
from bftd.http.encoding import answered
from bftd.http.handlers.status import HISTORY
from bftd.http.request import SERVICE, RequestRefused, number_of
from bftd.ledger.history import query
from bftd.ledger.reader import LedgerReader

# Far beyond the kept time, and exact in SQLite's integers.
_LATEST_S = 1e11
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


def _encoded(answer: Mapping[str, Any]) -> bytes:
    """Encode the answer as JSON point by point: each may have hundreds of trainers, and other threads must run."""
    head = json.dumps({name: value for name, value in answer.items() if name != "points"})
    return f'{head[:-1]}, "points": [{", ".join(map(json.dumps, answer["points"]))}]}}'.encode()
