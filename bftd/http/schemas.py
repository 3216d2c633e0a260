"""Bodies of API requests that are not drivers' messages, and the daemon's additions to drivers' messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bftd.config import keys
from bftd.protocol.errors import Malformed
from bftd.protocol.fields import Fields
from bftd.protocol.registration import Registration


def registration(data: object, partitions: tuple[str, ...], user: str | None) -> Registration:
    """Return a driver's registration, completed; `user` is the caller, None if they may speak for others.

    Raises Malformed.
    """
    request = Registration.from_json(data)
    if request.partition not in ("", *partitions):
        some = f"partitions {' and '.join(partitions)}" if len(partitions) > 1 else f"partition {partitions[0]}"
        raise Malformed(f"trainer: this daemon harvests the {some}, not {request.partition}")
    asked_for = request.user or user or ""
    if not asked_for:
        raise Malformed("trainer: user is missing")
    if user is not None and asked_for != user:
        raise Malformed(f"trainer: user must be {user}, who asks, not {asked_for}")
    partition = partitions[0] if len(partitions) == 1 else request.partition
    return replace(request, user=asked_for, partition=partition)


def tuned(data: object) -> dict[str, Any]:
    """Return the keys that a tune request changes, at least one; raises Malformed or ConfigError."""
    body, known = Fields(data, "tune"), keys.tunable()
    changed = {key.name: key.checked(body.raw(key.name), f"tune: {key.name}") for key in known if body.has(key.name)}
    if not changed:
        raise Malformed(f"tune: give at least one of {', '.join(key.name for key in known)}")
    return changed


def reset(data: object) -> frozenset[str] | None:
    """Return the keys that a tune request resets, all if it names none; None if it is not such a request.

    Raises Malformed.
    """
    body, known = Fields(data, "tune"), frozenset(key.name for key in keys.tunable())
    if not body.has("reset"):
        return None
    names = body.raw("reset")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Malformed("tune: reset must be a list of keys, an empty one for all")
    if any(body.has(name) for name in known):
        raise Malformed("tune: give keys to change or reset, not both")
    if unknown := sorted(set(names) - known):
        raise Malformed(f"tune: reset: {unknown[0][:40]!r} is none of {', '.join(sorted(known))}")
    return frozenset(names) or known
