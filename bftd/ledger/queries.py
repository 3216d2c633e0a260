"""The past in the ledger: trainers that have ended, a node's leases, and the decisions about them.

All of it runs in a thread beside the loop, with a `LedgerReader` that has its own connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any

from bftd.ledger.reader import LedgerReader

# Rows of the ledger read at a time, and rows around a lease's event searched for the decisions of the same step.
_BATCH = 500
_STEP_ROWS = 500
# As it stands in the JSON of a decision; within a text its quotes would be escaped.
_NOTED = '"kind": "noted"'
# The kinds of events about a lease.
_LEASE_KINDS = ("granted", "adopted", "revoked", "ended", "give_back", "alarm")


def last_words(reader: LedgerReader, trainers: Collection[str]) -> dict[str, str]:
    """Return the last decision about each trainer as a sentence without its leading name; "" if there is none.

    Notes of its driver are skipped: they do not say why it has its nodes.
    """
    rows = reader.rows(
        "SELECT own.value, coalesce((SELECT data FROM events WHERE trainer = own.value AND kind = 'decision' "
        "AND NOT instr(data, ?) ORDER BY rowid DESC LIMIT 1), '') FROM json_each(?) AS own",
        [_NOTED, json.dumps(list(trainers))],
    )
    return {id_: _nameless(json.loads(data)) if data else "" for id_, data in rows}


def finished(
    reader: LedgerReader, present: Collection[str], limit: int, sees: Callable[[str], bool]
) -> tuple[list[dict[str, Any]], bool]:
    """Return the trainers that ended last, newest first, and whether there are more than `limit`.

    Those in `present` and those of users whom the caller may not see are left out. Values that the ledger of an older
    bftd lacks are None.
    """
    found: dict[str, dict[str, Any]] = {}
    skipped, before = set(present), 2**63 - 1
    while True:
        rows = reader.rows(
            "SELECT rowid, trainer, at_s, data FROM events WHERE kind = 'finished' AND rowid < ? "
            "ORDER BY rowid DESC LIMIT ?",
            [before, _BATCH],
        )
        if not rows:
            return list(found.values()), False
        before = rows[-1][0]
        ends = [(id_, at_s, json.loads(data)) for _, id_, at_s, data in rows]
        known = registered(reader, {id_ for id_, _, data in ends if "trainer" not in data})
        for id_, at_s, data in ends:
            if id_ in found or id_ in skipped:  # it was requeued: its last end counts
                continue
            who = data["trainer"] if "trainer" in data else known.get(id_)
            if who is None or not sees(who["user"]):
                skipped.add(id_)
                continue
            if len(found) == limit:
                return list(found.values()), True
            found[id_] = _ended(id_, at_s, who | data)


def leases_on(reader: LedgerReader, node: str, limit: int) -> list[dict[str, Any]]:
    """Return the last leases of a node, newest last: who held it from when to when, and why each began and ended."""
    kinds = ", ".join(f"'{kind}'" for kind in _LEASE_KINDS)
    # a lease has four events at most, and an alarm now and then
    rows = reader.rows(
        f"SELECT rowid, kind, trainer, at_s, data FROM events WHERE node = ? AND +kind IN ({kinds}) "
        "ORDER BY rowid DESC LIMIT ?",
        [node, 5 * limit],
    )
    leases: dict[str, dict[str, Any]] = {}
    for rowid, kind, trainer, at_s, data in reversed(rows):
        event = json.loads(data)
        lease = leases.setdefault(event["lease"], _lease(event["lease"], trainer))
        lease["rows"].append(rowid)
        if kind in ("granted", "adopted"):
            lease |= {"granted_s": at_s, "why": event["reason"]}
        elif kind == "revoked":
            lease |= {"revoked_s": at_s, "why_revoked": event["reason"], "vacated": event["vacate"]}
        elif kind == "ended":
            lease |= {"ended_s": at_s, "why_revoked": lease["why_revoked"] or event["reason"]}
        elif kind == "give_back":
            lease["give_back_s"] = event["duration_s"]
        else:
            lease["overdue_s"] = event["overdue_s"]
    # the oldest lease may be incomplete
    whole = [lease for lease in leases.values() if lease["granted_s"] is not None or len(leases) == 1]
    return whole[-limit:]


def decisions_about(
    reader: LedgerReader, node: str, leases: Iterable[dict[str, Any]], limit: int
) -> list[dict[str, Any]]:
    """Return the last decisions that name a node, oldest first: those of steps that changed its leases, and notices."""
    quoted = json.dumps(node)
    changed = json.dumps([rowid for lease in leases for rowid in lease["rows"]])
    near = reader.rows(  # "+" keeps SQLite from going through all decisions by their kind
        "SELECT DISTINCT e.rowid, e.trainer, e.at_s, e.data FROM json_each(?) AS own "
        "JOIN events AS lease ON lease.rowid = own.value JOIN events AS e ON +e.kind = 'decision' "
        "AND e.rowid BETWEEN own.value - ? AND own.value + ? AND e.at_s = lease.at_s AND instr(e.data, ?)",
        [changed, _STEP_ROWS, _STEP_ROWS, quoted],
    )
    notices = reader.rows(
        "SELECT rowid, trainer, at_s, data FROM (SELECT rowid, trainer, at_s, data FROM events "
        "WHERE trainer IS NULL AND kind = 'decision' ORDER BY rowid DESC LIMIT ?) WHERE instr(data, ?)",
        [4 * _BATCH, quoted],
    )
    rows = {row[0]: row for row in (*near, *notices)}
    decisions = (
        (trainer, at_s, json.loads(data)) for _, trainer, at_s, data in (rows[rowid] for rowid in sorted(rows))
    )
    return [{"at_s": at_s, "trainer": trainer, "text": item["text"]} for trainer, at_s, item in decisions][-limit:]


def registered(reader: LedgerReader, trainers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return name, user and `arrived_s` of trainers at their last registration, if the ledger has it."""
    if not trainers:
        return {}
    rows = reader.rows(
        "SELECT e.trainer, e.at_s, e.data FROM json_each(?) AS own JOIN events AS e ON e.rowid = "
        "(SELECT rowid FROM events WHERE trainer = own.value AND kind = 'registered' ORDER BY rowid DESC LIMIT 1)",
        [json.dumps(sorted(trainers))],
    )
    return {id_: {"arrived_s": at_s} | json.loads(data) for id_, at_s, data in rows}


def _ended(id_: str, at_s: float, trainer: dict[str, Any]) -> dict[str, Any]:
    names = ("account", "backend", "nodes_min", "nodes_max", "arrived_s", "step", "samples", "loss", "log", "exit_code")
    return {
        "id": id_,
        "name": trainer["name"],
        "user": trainer["user"],
        "state": "finished",
        "finished_s": at_s,
        "reason": trainer.get("reason") or "",
    } | {name: trainer.get(name) for name in names}


def _lease(id_: str, trainer: str | None) -> dict[str, Any]:
    times = ("granted_s", "revoked_s", "ended_s", "give_back_s", "overdue_s")
    blank: dict[str, Any] = dict.fromkeys(times) | {"why": "", "why_revoked": "", "vacated": False}
    return {"lease": id_, "trainer": trainer} | blank | {"rows": []}


def _nameless(decision: dict[str, Any]) -> str:
    text: str = decision["text"]
    who = (decision.get("decision") or {}).get("who")
    return text.removeprefix(f"{who} ") if who else text
