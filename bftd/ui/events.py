"""Events of the ledger as sentences, with trainers by name, nodes folded and times as clock times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from bftd.base.format import between, clock, counted, duration, listed, moment, rate
from bftd.base.old_names import EVENTS
from slurm_plugin.nodeset import fold

Event = Mapping[str, Any]

# A decision of the same moment tells these, and an event of the daemon's the end that a driver reports.
_TOLD = frozenset({"note", "curve", "suspend", "finished", "paused", "resumed", "stray", "alarm", "solver_failed"})
_TOLD_OF_LEASES = frozenset({"leaving", "refused", "ended"})
# Those of several nodes in a second are one sentence.
_OF_NODES = frozenset({"granted", "adopted", "revoked", "ended", "lease", "give_back"})
_LEASES = {
    "placed": "{who} has a pilot on {nodes}",
    "ready": "{who} is ready on {nodes}",
    "working": "{who} trains on {nodes}",
}
# Larger numbers of seconds are moments.
_MOMENT_S = 1e9


def sentences(events: Iterable[Event], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield date and time and the sentence of each event, oldest first; `names` maps trainer id to name.

    What another event of the same second tells is left out. Kinds that this version does not know, and events without
    the fields that it expects, are shown field by field.
    """
    known = dict(names)
    for at, group in groupby(events, lambda event: moment(event["at_s"])):
        together = list(group)
        for event in together:
            _learn(known, event)
        told = set(_told(together))
        nodes: dict[tuple[object, ...], list[Event]] = {}
        for event in together:
            if (event["kind"], event["trainer"], event["node"]) not in told:
                nodes.setdefault(_key(event), []).append(event)
        for alike in nodes.values():
            if text := _sentence(alike, known):
                yield at, text


def _learn(known: dict[str, str], event: Event) -> None:
    data = event["data"]
    of = {"registered": data, "finished": data.get("trainer")}.get(event["kind"])
    if isinstance(of, Mapping) and of.get("name"):
        known[event["trainer"]] = str(of["name"])


def _told(together: Iterable[Event]) -> Iterator[tuple[Any, Any, str]]:
    """Yield kind, trainer and node of events that others of the same second tell."""
    for event in together:
        if event["kind"] == "give_back":
            yield "ended", event["trainer"], event["node"]
        decision = event["data"].get("decision")
        for nodes in decision.values() if event["kind"] == "decision" and isinstance(decision, Mapping) else ():
            for node in nodes if isinstance(nodes, list) else ():
                yield "granted", event["trainer"], str(node)
                yield "revoked", event["trainer"], str(node)


def _key(event: Event) -> tuple[object, ...]:
    """Return what events of several nodes must have in common to be one sentence."""
    if event["kind"] not in _OF_NODES or not event["node"]:
        return (event["rowid"],)
    data = event["data"]
    return event["kind"], event["trainer"], *(str(data.get(name)) for name in ("state", "reason", "vacate"))


def _sentence(alike: list[Event], names: Mapping[str, str]) -> str:
    """Return one sentence about events that differ in their nodes alone; "" if it says nothing new."""
    event = alike[0]
    kind, data = EVENTS.get(event["kind"], str(event["kind"])), event["data"]
    if kind in _TOLD or (kind == "lease" and str(data.get("state")) in _TOLD_OF_LEASES):
        return ""
    who = names.get(event["trainer"], f"trainer {event['trainer']}") if event["trainer"] else "a trainer"
    nodes = _folded([str(each["node"]) for each in alike if each["node"]])
    try:
        return _known(kind, who, nodes, [each["data"] for each in alike], event)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return _unknown(kind, who if event["trainer"] else "", nodes, data)


def _known(kind: str, who: str, nodes: str, every: list[Mapping[str, Any]], event: Event) -> str:
    """Return the sentence of a known kind; raises KeyError for others, and what wrong fields raise."""
    data = every[0]
    match kind:
        case "decision":
            return str(data["text"])
        case "registered":
            return f"{who} of {data['user']} is registered, with the id {event['trainer']}"
        case "registered_again":
            return f"the driver of {who} is back"
        case "changed":
            return f"{who} may have {between(data['nodes_min'], data['nodes_max'], 'node')}, weight {data['weight']:g}"
        case "granted":
            return f"{who} gets {nodes}{_because(data)}"
        case "adopted":
            return f"{who} still has {nodes}{_because(data)}"
        case "revoked":
            return f"{who} is asked for {nodes}{' at once' if data.get('vacate') else ''}{_because(data)}"
        case "ended":
            return f"{who} no longer has {nodes}{_because(data)}"
        case "lease":
            return _LEASES[data["state"]].format(who=who, nodes=nodes) + _because(data)
        case "give_back":
            return f"{who} gave back {nodes} in {_took(max(each['duration_s'] for each in every))}"
        case "progress":
            speed = f", {rate(data['samples_per_s'])} samples/s" if data.get("samples_per_s") else ""
            loss = "" if data.get("loss") is None else f", loss {data['loss']:.4g}"
            return f"{who} is at step {data['step']:,} on {counted(data['nodes'], 'node')}{speed}{loss}"
        case "resume":
            return f"{who} goes on from step {data['step']:,}"
        case "resize":
            return _resize(who, data)
        case "crash":
            how = data["text"] or (f"a worker ended (exit code {data['rc']})" + (f" on {nodes}" if nodes else ""))
            return f"{who}: {how}"
        case "cancel":
            return f"job {data['job_id']} is cancelled{_because(data)}"
        case "clock_set":
            way = "forward" if data["by_s"] > 0 else "back"
            return f"the clock was set {way} by {_took(abs(data['by_s']))}"
        case "regular_start":
            late = data["delay_s"]
            delay = "its delay is not known" if late is None else f"they delayed it by at most {_took(late)}"
            return f"regular job {data['job']} started where pilots were, on {counted(data['nodes'], 'node')}; {delay}"
        case "earmark":
            due = f", which Slurm may start at {clock(data['due_s'])}" if data.get("due_s") else ""
            leaving = f"; pilots leave {data['leaving']}" if data.get("leaving") else ""
            return f"an earmark keeps {data['nodes']} free for job {data['job']}{due}{leaving}"
        case "earmark_over":
            kept = f"{counted(round(data['kept_node_seconds']), 'node-second')} kept idle"
            return f"the earmark for job {data['job']} is over after {_took(data['duration_s'])}, {data['end']}: {kept}"
        case "pool":
            return _pool(data)
        case "pool_whole":
            first = "bftd has started, and " if data.get("first") else ""
            beyond = f"; max_nodes or max_share keeps out {data['beyond']}" if data.get("beyond") else ""
            return f"{first}the pool has {data['nodes'] or 'no node'}{beyond}"
    raise KeyError(kind)


def _because(data: Mapping[str, Any]) -> str:
    return f": {data['reason']}" if data.get("reason") else ""


def _took(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def _resize(who: str, data: Mapping[str, Any]) -> str:
    stall = "" if data.get("stall_s") is None else f", {_took(data['stall_s'])} without training"
    lost = f", {counted(data['steps_lost'], 'step')} lost" if data.get("steps_lost") else ""
    if data["kind"] == "crash":
        return f"{who} went on with {counted(data['to_nodes'], 'node')} after a crash{stall}{lost}"
    return f"{who} went from {data['from_nodes']} to {counted(data['to_nodes'], 'node')}{stall}{lost}"


def _pool(data: Mapping[str, Any]) -> str:
    changes = {
        "joined": "{} joined the pool",
        "left": "{} left the pool",
        "beyond_joined": "max_nodes or max_share keeps out {}",
        "beyond_left": "max_nodes or max_share no longer keeps out {}",
    }
    return listed([text.format(_folded(data[name])) for name, text in changes.items() if data.get(name)])


def _unknown(kind: str, who: str, nodes: str, data: Mapping[str, Any]) -> str:
    """Show an event field by field."""
    about = [who] if who else []
    about += [nodes] if nodes else []
    about += [_field(str(name), value) for name, value in data.items() if value not in (None, "", [], {})]
    return f"{kind.replace('_', ' ')}: {', '.join(about)}" if about else kind.replace("_", " ")


def _field(name: str, value: Any) -> str:
    words = name.removesuffix("_s").replace("_", " ")
    if isinstance(value, bool):
        return f"{words} {'yes' if value else 'no'}"
    if isinstance(value, int | float):
        if not name.endswith("_s"):
            return f"{words} {value:,.6g}"
        return f"{words} {moment(value) if value > _MOMENT_S else _took(value)}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return f"{words} {_folded(value)}"
    return f"{words} {value if isinstance(value, str) else json.dumps(value)}"


def _folded(names: list[str]) -> str:
    """Fold names of nodes; those that Slurm would not give one are joined."""
    try:
        return fold(names)
    except Exception:  # of a library with errors of its own
        return ", ".join(names)
