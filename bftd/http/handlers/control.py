"""Handlers that change what is lent: pauses by administrators, and the requests of trainers' users."""

from __future__ import annotations

import pwd

from aiohttp import web

from bftd.core.model import growth_stops
from bftd.core.model.domain import State
from bftd.core.model.events import RequestChanged
from bftd.core.model.pause import Pause, PauseKind
from bftd.http.request import SERVICE, RequestRefused, administrator, apply, body_of, own_trainer
from bftd.protocol.bounds import NAME_MOST, WEIGHT_MOST
from bftd.protocol.fields import Fields
from bftd.protocol.sizes import Sizes
from bftd.service import admin_view

# More nodes than any machine has.
_MOST_NODES = 100_000

_MAY = "pause and resume"

# The kinds and names of what is paused or resumed.
_What = list[tuple[PauseKind, str]]


async def pause(request: web.Request) -> web.Response:
    """Stop lending some nodes, lending to a user's or an account's trainers, or all lending; for administrators."""
    service, caller = request.app[SERVICE], administrator(request, _MAY)
    fields = Fields(await body_of(request), "pause")
    why = fields.text("why")
    if not why:
        raise RequestRefused(400, "pause: why is empty: say it to those who will wait")
    chosen = _chosen(fields, "pause")
    _refuse_unknown(service.state, chosen)
    now_s, release = service.now(), fields.flag("release", False)
    pauses = [Pause(kind, name, caller.user, now_s, why, release) for kind, name in chosen]
    asked_back = service.pause(pauses)
    reply = {"text": f"paused: {growth_stops.what(pauses)}; nothing new is lent", "asked_back": asked_back}
    bound_s = service.state.settings.pool.give_back_bound_s
    return web.json_response(reply | {"within_s": bound_s, "pauses": admin_view.pauses(service.state)})


async def resume(request: web.Request) -> web.Response:
    """Lift pauses; for administrators."""
    service, caller = request.app[SERVICE], administrator(request, _MAY)
    fields, before = Fields(await body_of(request), "resume"), service.state.pauses
    every = fields.flag("all", False)
    chosen = [] if every else _chosen(fields, "resume")
    lifted = list(before.values()) if every else [before[key] for key in map(_key, chosen) if key in before]
    if not lifted:
        raise RequestRefused(409, _not_paused(service.state, chosen))
    service.resume(caller.user, [item.key for item in lifted])
    text = f"{growth_stops.what(lifted)}: lent again from the next snapshot on"
    return web.json_response({"text": text, "pauses": admin_view.pauses(service.state)})


async def change(request: web.Request) -> web.Response:
    """Change a trainer's numbers of nodes, or its weight; for its user and administrators."""
    fields = Fields(await body_of(request), "change")
    asked = Sizes.read(fields) if fields.has("nodes_min") or fields.has("nodes_max") else None
    weight = fields.number("weight", None, maximum=WEIGHT_MOST)
    service, trainer = own_trainer(request)
    pool = service.state.pool
    if asked is None and not weight:
        raise RequestRefused(400, "change: give nodes_min and nodes_max, or a weight above 0")
    if not trainer.active:
        raise RequestRefused(409, f"trainer {trainer.id} has ended")
    if not pool.seen:
        raise RequestRefused(503, "Slurm was not read yet since the daemon's start: try again in a moment")
    sizes = None
    if asked is not None:
        if not trainer.request.resizable:
            raise RequestRefused(409, f"the driver of trainer {trainer.id} is too old to be resized: submit it anew")
        sizes = trainer.request.sizes.between(asked.low, asked.high)
        if sizes is None:
            only = ", ".join(map(str, trainer.request.sizes.only or ()))
            raise RequestRefused(400, f"change: trainer {trainer.id} runs on {only} nodes alone (sizes=)")
        if asked.low > len(pool.nodes):
            raise RequestRefused(400, f"change: {len(pool.nodes)} nodes are harvested, it would need {asked.low}")
    if sizes not in (None, trainer.sizes) or weight not in (None, trainer.request.weight):
        apply(request, RequestChanged(service.now(), trainer.id, sizes, weight or None))
    now = service.state.trainers[trainer.id]
    answer = now.sizes.to_fields() | {"weight": now.request.weight}
    return web.json_response(answer | {"id": now.id, "objective": service.state.settings.decide.objective})


def _chosen(fields: Fields, where: str) -> _What:
    """Return what a request names; everything if it names nothing."""
    if sum(fields.has(name) for name in ("nodes", "user", "account")) > 1:
        raise RequestRefused(400, f"{where}: nodes, user and account exclude each other: ask once for each")
    if fields.has("nodes"):
        names = fields.items("nodes", _MOST_NODES)
        if not names or not all(map(_is_name, names)):
            raise RequestRefused(400, f"{where}: nodes must be names of nodes")
        return [("node", name) for name in dict.fromkeys(names)]
    if fields.has("user"):
        return [("user", fields.name("user"))]
    return [("account", fields.name("account"))] if fields.has("account") else [("all", "")]


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME_MOST and name.isprintable()


def _refuse_unknown(state: State, chosen: _What) -> None:
    """Refuse unknown nodes and users; nodes are unknown before the first snapshot, but a pause must not wait."""
    if state.pool.seen:
        unknown = tuple(name for kind, name in chosen if kind == "node" and name not in state.pool.nodes)
        if unknown:
            raise RequestRefused(
                400,
                f"{growth_stops.named('node', unknown)} not in the harvested partition: `bft status` lists its nodes",
            )
    for kind, name in chosen:
        if kind == "user" and not _is_user(name, state):
            raise RequestRefused(400, f"pause: there is no user {name} here: see the name in `bft trainers`")


def _is_user(name: str, state: State) -> bool:
    """A user without a name on this host is called by the uid."""
    if name.isdecimal() or any(trainer.user == name for trainer in state.trainers.values()):
        return True
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _key(item: tuple[PauseKind, str]) -> str:
    return f"{item[0]}:{item[1]}"


def _not_paused(state: State, chosen: _What) -> str:
    """Say that nothing of what was asked for is paused, and what is paused instead."""
    if not state.pauses:
        return "nothing is paused"
    what = growth_stops.named(chosen[0][0], tuple(name for _, name in chosen))
    return f"{what} is not paused, but {growth_stops.what(state.pauses.values())}: name it, or say --all"
