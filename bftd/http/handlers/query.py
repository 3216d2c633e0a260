"""Handlers for people's questions beside the status: one trainer, one node, and the present and past trainers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from bftd.base import old_names
from bftd.core.model.domain import State
from bftd.http.auth.gate import caller_of
from bftd.http.auth.privacy import NAMELESS, Privacy
from bftd.http.encoding import answered, encoded
from bftd.http.handlers.status import HISTORY, MOST_EVENTS, explained
from bftd.http.request import SERVICE, number_of
from bftd.ledger import queries
from bftd.ledger.reader import LedgerReader
from bftd.protocol.changes import ASKED
from bftd.service import status as shown_status
from bftd.service.service import Service
from slurm_plugin.nodeset import fold

# The most ended trainers in one answer.
MOST_FINISHED = 5_000
# The most leases of a node in one answer, whatever the number of sentences asked for.
_LEASES_MOST = 20


async def explain_node(request: web.Request) -> web.Response:
    """Return one node: why it is or is not in the pool, who had it lately, and the decisions about it."""
    name = request.match_info["name"]
    limit = int(number_of(request, "limit", 50.0, MOST_EVENTS))
    told = node_question(request.app[SERVICE], _privacy(request), name, limit)
    why_not = f"no node {name} is harvested: `bft status` lists those that are, `bft nodes` all of Slurm's"
    return await explained(request, told, why_not)


def node_question(
    service: Service, privacy: Privacy, name: str, limit: int
) -> Callable[[LedgerReader], dict[str, Any] | None]:
    """Return a look-up of one node, its leases and the decisions about it; it gives None for one never harvested.

    The present state is read now, on the loop; the look-up may run in any thread.
    """
    state = service.state
    shown = shown_status.node_details(state, name, service.now())

    def look_up(ledger: LedgerReader) -> dict[str, Any] | None:
        leases = queries.leases_on(ledger, name, min(limit, _LEASES_MOST))
        if shown is None and not leases:
            return None
        if leases:
            leases[-1]["why_revoked"] += _now_there(state, name, leases[-1])
        gone = {lease["trainer"] for lease in leases} - state.trainers.keys()
        known = queries.registered(ledger, gone)
        known |= {id_: {"name": item.name, "user": item.user} for id_, item in state.trainers.items()}
        decisions = queries.decisions_about(ledger, name, leases, limit)
        if privacy.hides:
            decisions = [privacy.data(item) for item in decisions if privacy.sees_trainer(item["trainer"])]
        return {
            "node": None if shown is None else _nameless_node(privacy, shown),
            "leases": [_lease(privacy, known.get(lease["trainer"], {}), lease) for lease in leases],
            "decisions": decisions,
        }

    return look_up


async def trainers(request: web.Request) -> web.Response:
    """Return the present trainers, each with the last decision about it; with `all` also those that ended before."""
    service, privacy = request.app[SERVICE], _privacy(request)
    every = request.query.get("all", "") not in ("", "0")
    limit = int(number_of(request, "limit", 1000.0, MOST_FINISHED))
    state = service.state

    def look_up(ledger: LedgerReader) -> bytes:
        seen = [item.id for item in state.trainers.values() if privacy.sees(item.user)]
        words = queries.last_words(ledger, seen)
        found = [privacy.trainer(item) | {"reason": privacy.text(words.get(item["id"], ""))} for item in _shown(state)]
        ended, more = queries.finished(ledger, state.trainers, limit, privacy.sees) if every else ([], False)
        gone = [privacy.trainer(item) for item in reversed(ended)]
        return encoded({"trainers": [*gone, *found], "more": more})

    return answered(await request.app[HISTORY].look_up(request, look_up))


def _privacy(request: web.Request) -> Privacy:
    service = request.app[SERVICE]
    return Privacy(caller_of(request), service.state, service.private)


def _shown(state: State) -> list[dict[str, Any]]:
    """Return the trainers of the state as in the status, with their nodes and times."""
    leases_of, on = defaultdict(list), defaultdict(list)
    for lease in state.leases.values():
        leases_of[lease.trainer].append(lease)
        if lease.live:
            on[lease.trainer].append(lease.node)
    return [
        shown_status.trainer(state, item, leases_of)
        | {"arrived_s": item.arrived_s, "finished_s": item.finished_s, "on": fold(on[id_]) if on[id_] else ""}
        for id_, item in state.trainers.items()
    ]


def _now_there(state: State, name: str, last: Mapping[str, Any]) -> str:
    """Return whether a regular job has the node, where Slurm took it without saying why; "" if that is not known."""
    item, ended_s = state.pool.nodes.get(name), last["ended_s"]
    if item is None or ended_s is None or state.pool.time_s <= ended_s or last["why_revoked"] != ASKED:
        return ""
    return f"; now the node {item.why}" if item.wanted else "; no regular job has the node"


def _nameless_node(privacy: Privacy, shown: dict[str, Any]) -> dict[str, Any]:
    node = privacy.node(shown)
    if not privacy.hides:
        return old_names.node(node)
    own = node["trainer"] is not None and node["trainer"] != NAMELESS
    hidden = {"co_located": "", "beside": "", "pilot": node["pilot"] if own else None, "left_out_for": ""}
    earmark = None if node["earmark"] is None else node["earmark"] | {"job": ""}
    return old_names.node(node | hidden | {"earmark": earmark})


def _lease(privacy: Privacy, known: Mapping[str, Any], lease: dict[str, Any]) -> dict[str, Any]:
    """Return one lease with its user and trainer; of others' leases only the times if Slurm keeps jobs private."""
    fields = {name: value for name, value in lease.items() if name != "rows"}
    if privacy.sees(known.get("user")):
        whose = {"name": known.get("name"), "user": known.get("user")}
        return fields | whose | {key: privacy.text(fields[key]) for key in ("why", "why_revoked")}
    return fields | {"lease": None, "trainer": NAMELESS, "name": NAMELESS, "user": "", "why": "", "why_revoked": ""}
