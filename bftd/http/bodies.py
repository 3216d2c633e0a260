"""The bodies of API requests: checked by hand, field by field, and made into events of the core.

Every fault is a BadRequest of one line that names the field. Unknown fields are ignored, so that an older daemon
serves a newer driver.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from bftd.core.domain import Held, Settings, Trainer
from bftd.core.learn import Knowledge
from bftd.errors import BadRequest

# A trainer id is a Slurm job id or "run-<host>-<pid>"; it stands in URLs and in lease lists.
_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}$")
_LEASE_ID = re.compile(r"[^\s/]{1,256}\.\d{1,18}$")
_LEASE_STATES = ("placed", "refused", "ready", "working", "leaving", "ended")
_RESIZE_KINDS = ("up", "down", "crash")
OBJECTIVES = ("throughput", "efficiency", "priority")
# The most that one trainer may ask for; far above the largest machine, it only keeps senseless numbers out.
NODES_LIMIT = 1_000_000
# Text that a driver sends is shown on one line.
TEXT_LIMIT = 2_000

_REQUIRED = object()


class Body:
    """A JSON object whose fields are read by type; `where` stands in front of every message."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise BadRequest(f"{where} must be a JSON object")
        self._data: dict[str, Any] = data
        self._where = where

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._data.get(name) is not None

    def raw(self, name: str) -> Any:
        """A field as it came."""
        return self._data.get(name)

    def text(self, name: str, default: Any = _REQUIRED, choices: tuple[str, ...] = ()) -> Any:
        """A text; control characters become blanks, and what is too long is cut."""
        value = self._get(name, default)
        if value is default:
            return value
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        value = " ".join(value.split())[:TEXT_LIMIT]
        if choices and value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}", value)
        return value

    def whole(self, name: str, default: Any = _REQUIRED, minimum: int = 0, maximum: int | None = None) -> Any:
        """A whole number."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        if value < minimum or (maximum is not None and value > maximum):
            span = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
            raise self._wrong(name, span, value)
        return value

    def number(self, name: str, default: Any = _REQUIRED, minimum: float = 0.0) -> Any:
        """A finite number."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(name, "a finite number", value)
        if value < minimum:
            raise self._wrong(name, f"{minimum:g} or more", value)
        return float(value)

    def items(self, name: str) -> list[Any]:
        """A list; missing or null is the empty one."""
        value = self._get(name, None)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return value

    def nested(self, name: str) -> Body | None:
        """A nested object, None where it is missing or null."""
        return Body(self._data[name], f"{self._where}: {name}") if self.has(name) else None

    def mapping(self, name: str) -> dict[str, Any]:
        """A nested object taken as it is."""
        value = self._get(name, None)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return value or {}

    def wrong(self, name: str, wanted: str) -> BadRequest:
        """The error for a field that is wrong in a way of its own."""
        return self._wrong(name, wanted, self._data.get(name))

    def _get(self, name: str, default: Any) -> Any:
        value = self._data.get(name)
        if value is None:
            if default is _REQUIRED:
                raise BadRequest(f"{self._where}: {name} is missing")
            return default
        return value

    def _wrong(self, name: str, wanted: str, value: object) -> BadRequest:
        shown = repr(value)
        return BadRequest(f"{self._where}: {name} must be {wanted}, not {shown[:80]}")


def registration(data: object, partition: str, user: str | None, now_s: float) -> tuple[Trainer, tuple[Held, ...]]:
    """A trainer and the leases that its driver holds; `user` is who asks, None for one who may speak for others."""
    body = Body(data, "trainer")
    id_ = body.text("id")
    if not _ID.match(id_):
        raise body.wrong("id", "a job id or run-<host>-<pid>")
    nodes_min = body.whole("nodes_min", minimum=1, maximum=NODES_LIMIT)
    nodes_max = body.whole("nodes_max", minimum=1, maximum=NODES_LIMIT)
    if nodes_min > nodes_max:
        raise BadRequest(f"trainer: nodes_min {nodes_min} is above nodes_max {nodes_max}")
    harvested = body.text("partition", partition)
    if harvested != partition:
        raise BadRequest(f"trainer: this daemon harvests the partition {partition}, not {harvested}")
    asked_for = body.text("user", user or "")
    if not asked_for:
        raise BadRequest("trainer: user is missing")
    if user is not None and asked_for != user:
        raise BadRequest(f"trainer: user must be {user}, who asks, not {asked_for}")
    trainer = Trainer(
        id=id_,
        name=body.text("name", "") or id_,
        user=asked_for,
        backend=body.text("backend"),
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        arrived_s=now_s,
        knowledge=_knowledge(body),
        sizes=_sizes(body, nodes_min, nodes_max),
        weight=body.number("weight", 1.0),
        partition=partition,
        workers_per_node=body.whole("workers_per_node", None, minimum=1, maximum=NODES_LIMIT),
    )
    return trainer, tuple(_held(item) for item in body.items("held"))


def reports(data: object) -> tuple[int, tuple[Mapping[str, Any], ...]]:
    """The epoch and the checked events of a report."""
    body = Body(data, "report")
    return body.whole("epoch"), tuple(_report(item) for item in body.items("events"))


def finish(data: object) -> tuple[int, int, str, dict[str, Any]]:
    """Epoch, exit code, reason and summary of a trainer that ends."""
    body = Body(data, "finish")
    code = body.whole("exit_code", minimum=-255, maximum=255)
    return body.whole("epoch"), code, body.text("reason", ""), body.mapping("summary")


def tuned(data: object) -> dict[str, Any]:
    """The settings that a tune request changes, at least one."""
    body = Body(data, "tune")
    settings: dict[str, Any] = {}
    if body.has("t_fwd_s"):
        settings["t_fwd_s"] = body.number("t_fwd_s", minimum=0.1)
    if body.has("objective"):
        settings["objective"] = body.text("objective", choices=OBJECTIVES)
    if body.has("pj_max"):
        settings["pj_max"] = body.whole("pj_max", minimum=1, maximum=NODES_LIMIT)
    if not settings:
        raise BadRequest("tune: give at least one of t_fwd_s, objective and pj_max")
    return settings


def restored(data: Mapping[str, Any], defaults: Settings) -> dict[str, Any]:
    """Tuned settings from the ledger, as far as this version knows them."""
    return {name: value for name, value in data.items() if hasattr(defaults, name)}


def _knowledge(body: Body) -> Knowledge:
    given: tuple[tuple[int, float], ...] = ()
    curve = body.nested("curve")
    if curve is not None:
        counts, rates = curve.items("nodes"), curve.items("samples_per_s")
        if len(counts) != len(rates) or not counts:
            raise curve.wrong("nodes", "as many as samples_per_s, at least one")
        points = [_point(count, rate) for count, rate in zip(counts, rates, strict=True)]
        if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(points)):
            raise curve.wrong("nodes", "in increasing order")
        given = tuple(point for point in points if point[0] > 0)
    return Knowledge(
        given=given,
        given_up_cost_s=body.number("up_cost_s", None),
        given_down_cost_s=body.number("down_cost_s", None),
    )


def _point(count: object, rate: object) -> tuple[int, float]:
    point = Body({"nodes": count, "samples_per_s": rate}, "trainer: curve")
    return point.whole("nodes", maximum=NODES_LIMIT), point.number("samples_per_s")


def _sizes(body: Body, nodes_min: int, nodes_max: int) -> tuple[int, ...] | None:
    if not body.has("sizes"):
        return None
    sizes = body.items("sizes")
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise body.wrong("sizes", "a list of whole numbers")
    usable = tuple(sorted({size for size in sizes if nodes_min <= size <= nodes_max}))
    if not usable:
        raise body.wrong("sizes", f"a list with at least one size from {nodes_min} to {nodes_max}")
    return usable


def _held(data: object) -> Held:
    body = Body(data, "trainer: held")
    id_ = body.text("id")
    if not _LEASE_ID.match(id_):
        raise body.wrong("id", "a lease id, <node>.<number>")
    return Held(id_, body.text("node", id_.rpartition(".")[0]), body.text("job_id", None))


def _report(data: object) -> dict[str, Any]:
    body = Body(data, "report")
    op = body.text("op", choices=tuple(_REPORTS))
    return {"op": op, "at_s": body.number("at_s"), **_REPORTS[op](Body(data, f"report {op}"))}


_REPORTS: dict[str, Any] = {
    "lease": lambda body: {
        "id": body.text("id"),
        "state": body.text("state", choices=_LEASE_STATES),
        "job_id": body.text("job_id", None),
        "reason": body.text("reason", ""),
    },
    "progress": lambda body: {
        "step": body.whole("step"),
        "samples": body.number("samples"),
        "samples_per_s": body.number("samples_per_s", 0.0),
        "nodes": body.whole("nodes", 0, maximum=NODES_LIMIT),
        "world_size": body.whole("world_size", 0),
        # a diverging model reports NaN: that is its user's to see, not a wrong request
        "loss": None if _is_not_finite(body, "loss") else body.number("loss", None, minimum=-math.inf),
        "steps_lost": body.whole("steps_lost", 0),
        "window_s": body.number("window_s", 0.0),
    },
    "resize": lambda body: {
        "from_nodes": body.whole("from_nodes", maximum=NODES_LIMIT),
        "to_nodes": body.whole("to_nodes", maximum=NODES_LIMIT),
        "kind": body.text("kind", choices=_RESIZE_KINDS),
        "stall_s": body.number("stall_s", None),
        "steps_lost": body.whole("steps_lost", 0),
    },
    "suspend": lambda body: {"step": body.whole("step", 0)},
    "resume": lambda body: {"step": body.whole("step", 0)},
    "crash": lambda body: {
        "node": body.text("node", None),
        "rc": body.whole("rc", None, minimum=-(2**31)),
        "text": body.text("text", ""),
    },
    "note": lambda body: {"text": body.text("text", "")},
}


def _is_not_finite(body: Body, name: str) -> bool:
    value = body.raw(name)
    return isinstance(value, float) and not math.isfinite(value)
