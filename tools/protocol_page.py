"""The generated sections of docs/reference/protocol.md: endpoints, examples of every message, and bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bftd.http.rate_limit import BURST, UNITS_PER_S
from bftd.http.routes import ROUTES, Route
from bftd.protocol import bounds
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.errors import Malformed
from bftd.protocol.lease import Leases, LeaseView
from bftd.protocol.registration import Held, NodeKind, Registration, Welcome
from bftd.protocol.reports import KINDS, Finish, Reports, Summary, Taken, report_from_json
from bftd.protocol.sizes import Sizes

_LISTED: dict[str, Any] = {
    "version": 7,
    "min_window_s": 20.0,
    "timeout_s": 5.0,
    "now_s": 1795306136.9,
    "looked_s": 1795306136.2,
    "calm_s": 1795306152.0,
    "leases": [LeaseView("n3.41", "n3", "granted", False, 1800.0, "gpu:a100:4", 4, "it is idle").to_json()],
}
_ESTIMATE = CurveEstimate("a100x4", ((1, 310.0), (2, 600.0)), "assumed", "the data sheet of a100-sxm-40gb")
_REPORTS: tuple[dict[str, Any], ...] = (
    {"op": "lease", "at_s": 1795306137.2, "id": "n3.41", "state": "placed", "job_id": "4712", "reason": ""},
    {"op": "progress", "at_s": 1795306150.0, "step": 240, "samples": 30720.0, "samples_per_s": 1142.1, "nodes": 4,
     "world_size": 4, "loss": 0.45, "steps_lost": 0, "window_s": 10.0, "save_s": 0.21, "total_steps": 9000,
     "state_bytes": 410000000},
    {"op": "resize", "at_s": 1795306161.9, "from_nodes": 4, "to_nodes": 2, "kind": "down", "stall_s": 0.77,
     "steps_lost": 0, "save_s": 0.2, "rendezvous_s": 0.3, "load_s": 0.15, "state_bytes": 410000000},
    {"op": "suspend", "at_s": 1795306170.1, "step": 260},
    {"op": "resume", "at_s": 1795306180.3, "step": 260},
    {"op": "crash", "at_s": 1795306190.0, "node": "n3", "rc": -9, "text": "a worker was killed"},
    {"op": "note", "at_s": 1795306195.0, "text": "a sentence for people"},
    {"op": "curve", "at_s": 1795306199.0, "estimates": [_ESTIMATE.to_json()]},
)  # fmt: skip

REGISTRATION = Registration(
    id="4711", name="train.py", backend="torchrun", sizes=Sizes(1, 8, (1, 2, 4, 8)), user="alice", partition="elastic",
    workers_per_node=4, curve=((1, 310.0), (2, 600.0)), up_cost_s=1.1, down_cost_s=0.8, warm_up_s=12.8,
    held=(Held("n3.41", "n3", "4712"),), estimates=(_ESTIMATE,),
)  # fmt: skip
_KIND = NodeKind("a100x4", {"a100": 4}, ("ib",), 64)
WELCOME = Welcome.from_json(
    {"protocol": bounds.VERSION, "epoch": 2, "poll_s": 1.0, "note": "", "classes": [_KIND.to_json()], **_LISTED}
)
LEASES = Leases.from_json(_LISTED)
REPORTS = Reports(2, tuple(map(report_from_json, _REPORTS)))
TAKEN = Taken(17, 7810.0)
FINISH = Finish(2, 0, "training is complete", Summary(500, 64000.0, 3, 0, 0, 1.379, 0.117))

# How each message is read again, to find what may be left out.
_READ: Mapping[type, Callable[[Any], Any]] = {
    Registration: Registration.from_json,
    Welcome: Welcome.from_json,
    Leases: Leases.from_json,
    Finish: Finish.from_json,
    Taken: Taken.from_json,
}
_BOUNDS = {
    "NODES_MOST": "nodes, workers or trainers that anybody may ask for",
    "NUMBER_MOST": "a number, where no other bound is named: rates, costs, times",
    "WHOLE_MOST": "a whole number, where no other bound is named: steps, versions",
    "SAMPLES_MOST": "samples that a trainer has made",
    "WEIGHT_MOST": "the weight of a trainer",
    "TEXT_MOST": "letters of a text for people; what is longer is cut",
    "NAME_MOST": "letters of a name; what is longer is refused",
    "TRAINER_ID_MOST": "letters of a trainer's id",
    "LEASE_ID_MOST": "letters of a lease's id",
    "SIZES_MOST": "sizes that one trainer names",
    "FEATURES_MOST": "features that one trainer asks its nodes to have",
    "CURVE_POINTS_MOST": "points of a curve",
    "ESTIMATE_CLASSES_MOST": "classes of nodes for which a trainer's speed is estimated",
    "ESTIMATE_POINTS_MOST": "points of each of these estimates",
    "CLASSES_MOST": "classes of nodes that a driver is told of",
    "HELD_MOST": "leases that a driver brings along",
    "HELD_PER_NODE_MOST": "the same, for each node that its trainer may have at most",
    "COMMAND_MOST_S": "seconds that a Slurm command of a driver may take; at least 0.5",
    "REPORTS_MOST": "reports in one request",
    "TAIL_LINES_MOST": "lines of the log's end",
    "TAIL_LINE_MOST": "letters of each of these lines; what is longer is cut",
    "NOTES_PER_S_MOST": "notes of one trainer a second; the others are counted and dropped",
    "NOTES_AT_ONCE_MOST": "notes that may come at once, after a time without any",
    "BODY_BYTES_MOST": "bytes of a request's body",
    "BODY_VALUES_MOST": "values of a request's body: its commas, brackets and braces",
}


def endpoints() -> str:
    """All routes as a table, with what a request of each takes from its caller's budget."""
    return "\n".join(["| request | costs | what |", "| --- | --- | --- |", *map(_row, ROUTES)])


def _row(route: Route) -> str:
    does = (route.handler.__doc__ or "").strip().splitlines()[0]
    return f"| `{route.method} {route.path}` | {route.units:g} | {does} |"


def messages() -> str:
    """One example of each message, and what may be left out of it."""
    parts = [
        _message("A registration", REGISTRATION),
        _message("The answer to it", WELCOME),
        _message("The answer to a driver that asks for its leases", LEASES),
        _message("Reports, one of each kind", REPORTS, _optional_of_reports()),
        _message("The answer to them", TAKEN),
        _message("The end of a trainer", FINISH),
    ]
    return "\n\n".join(parts)


def _message(title: str, message: Any, optional: str | None = None) -> str:
    body = message.to_json()
    left_out = _optional(body, _READ[type(message)]) if optional is None else optional
    return f"### {title}\n\n```json\n{_shown(body)}\n```\n\nMay be left out: {left_out}."


def _shown(body: Mapping[str, Any]) -> str:
    """JSON with one line a field, and one line an item of a list of objects."""
    lines = []
    for name, value in body.items():
        items = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        text = (
            json.dumps(value) if items is None else "[\n" + ",\n".join(f"    {json.dumps(i)}" for i in items) + "\n  ]"
        )
        lines.append(f"  {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _optional(body: Mapping[str, Any], read: Callable[[Any], Any]) -> str:
    names = [f"`{name}`" for name in body if _is_read({k: v for k, v in body.items() if k != name}, read)]
    return ", ".join(names) or "nothing"


def _optional_of_reports() -> str:
    found: Iterator[str] = (f"of `{body['op']}` {_optional(body, report_from_json)}" for body in _REPORTS)
    return "; ".join(found)


def _is_read(body: Any, read: Callable[[Any], Any]) -> bool:
    try:
        read(body)
    except Malformed:
        return False
    return True


def limits() -> str:
    """The bounds of all messages, and of what a user may ask for."""
    rows = [f"| {getattr(bounds, name):,} | {what} |" for name, what in _BOUNDS.items()]
    rows += [f"| {UNITS_PER_S:,.0f} | units a second of a user who is no administrator, with a burst of {BURST:,.0f} |"]
    return "\n".join(["| most | of what |", "| --- | --- |", *rows])


SECTIONS: Mapping[str, Callable[[], str]] = {
    "endpoints": lambda: f"\n{endpoints()}\n\n",
    "messages": lambda: f"\n{messages()}\n\n",
    "bounds": lambda: f"\n{limits()}\n\n",
}


def unshown() -> set[str]:
    """Kinds of reports and bounds that the page has no example or line for."""
    bounded = {name for name in vars(bounds) if name.endswith(("_MOST", "_MOST_S"))}
    return (set(KINDS) - {body["op"] for body in _REPORTS}) | (bounded ^ set(_BOUNDS))
