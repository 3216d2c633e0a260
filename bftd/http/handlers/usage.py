"""Handler for usage of the pool: users see their own, administrators everybody's."""

from __future__ import annotations

from aiohttp import web

from bftd.http.auth.gate import caller_of
from bftd.http.request import SERVICE, RequestRefused, beside, number_of
from bftd.ledger import usage as kept

# Far beyond the kept time, and exact in floats and SQLite's integers.
_LATEST_S = 1e11


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
