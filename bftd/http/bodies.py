"""The bodies of API requests that are no message of a driver's, and what the daemon adds to those that are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bftd.protocol.bounds import NODES_MOST
from bftd.protocol.errors import Malformed
from bftd.protocol.fields import Fields
from bftd.protocol.registration import Registration

OBJECTIVES = ("throughput", "efficiency", "priority")


def registration(data: object, partition: str, user: str | None) -> Registration:
    """A driver's request, completed; `user` is who asks, None for one who may speak for others. Raises Malformed."""
    request = Registration.from_json(data)
    if request.partition not in ("", partition):
        raise Malformed(f"trainer: this daemon harvests the partition {partition}, not {request.partition}")
    asked_for = request.user or user or ""
    if not asked_for:
        raise Malformed("trainer: user is missing")
    if user is not None and asked_for != user:
        raise Malformed(f"trainer: user must be {user}, who asks, not {asked_for}")
    return replace(request, user=asked_for, partition=partition)


def tuned(data: object) -> dict[str, Any]:
    """The settings that a tune request changes, at least one; raises Malformed."""
    body = Fields(data, "tune")
    settings: dict[str, Any] = {}
    if body.has("t_fwd_s"):
        settings["t_fwd_s"] = body.number("t_fwd_s", minimum=0.1)
    if body.has("objective"):
        settings["objective"] = body.text("objective", choices=OBJECTIVES)
    if body.has("pj_max"):
        settings["pj_max"] = body.whole("pj_max", minimum=1, maximum=NODES_MOST)
    if not settings:
        raise Malformed("tune: give at least one of t_fwd_s, objective and pj_max")
    return settings
