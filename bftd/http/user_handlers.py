"""What people ask for: how it is, why, what happened, and to change how nodes are shared."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from bftd import __version__
from bftd.http import bodies
from bftd.http.asked import SERVICE, Refused, body_of, number_of
from bftd.http.caller import Caller
from bftd.http.gate import caller_of
from bftd.service import status as shown_status

# The most events or decisions of the ledger in one answer.
MOST_EVENTS = 10_000


async def explain(request: web.Request) -> web.Response:
    """One trainer, and the last sentences about it."""
    service, caller = request.app[SERVICE], caller_of(request)
    id_ = request.match_info["id"]
    limit = int(number_of(request, "limit", 50.0, MOST_EVENTS))
    decisions = service.ledger.decisions(id_, limit)
    trainer = service.state.trainers.get(id_)
    if trainer is None and not decisions:
        raise Refused(404, f"no trainer {id_} is known: `bft status` lists those there are")
    shown = None if trainer is None else _visible(caller, shown_status.trainer(service.state, trainer))
    told = [{name: value for name, value in item.items() if name != "trainer"} for item in decisions]
    return web.json_response({"trainer": shown, "decisions": told})


async def status(request: web.Request) -> web.Response:
    """What everybody may see, as with squeue: who trains on what; not how a training goes, which is its user's."""
    service, caller = request.app[SERVICE], caller_of(request)
    shown = service.overview(__version__)
    return web.json_response(shown | {"trainers": [_visible(caller, item) for item in shown["trainers"]]})


def _visible(caller: Caller, shown: dict[str, Any]) -> dict[str, Any]:
    return shown if caller.admin or caller.user == shown["user"] else shown | {"loss": None}


async def tune(request: web.Request) -> web.Response:
    """Change tunable keys, or go back to the configuration's values with `reset`, for administrators."""
    service = request.app[SERVICE]
    caller = caller_of(request)
    if not caller.admin:
        raise Refused(
            403, f"only administrators may tune the daemon, and {caller.user} is none ([daemon] administrators)"
        )
    body = await body_of(request)
    names = bodies.reset(body)
    if names is None:
        service.tune(bodies.tuned(body))
    else:
        service.reset(names)
    return web.json_response({"settings": shown_status.settings(service.state.settings)})


async def events(request: web.Request) -> web.Response:
    """The ledger's events: all of them for administrators, those of his own trainers for anybody else."""
    service, caller = request.app[SERVICE], caller_of(request)
    after, limit = int(number_of(request, "after", 0.0, 1e15)), int(number_of(request, "limit", 1000.0, MOST_EVENTS))
    own = None if caller.admin else [item.id for item in service.state.trainers.values() if item.user == caller.user]
    return web.json_response({"events": service.ledger.events(after, limit, own)})
