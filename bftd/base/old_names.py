"""Names of bftd 0.1 that stay understood, and are sent beside the new ones, until 1.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STATUS = {"earmarks": "rooms", "earmark_usage": "room_usage", "earmarks_wary": "rooms_wary"}
_USAGE = {"wasted": "in_vain", "wasted_node_seconds": "vain_node_seconds"}
_NODE = {"earmark": "room"}
# The kinds of problems by their old names.
PROBLEMS = {"rooms": "earmarks"}
# The kinds of events by their old names.
EVENTS = {"room": "earmark", "room_over": "earmark_over"}
# The names of keys of the configuration by section and old name.
KEYS: Mapping[tuple[str, str], str] = {("pool", "make_room"): "earmark"}


def status(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status, or what the ledger keeps of it, with the fields of both names."""
    both = _both(fields, _STATUS)
    usages = {name: _both(both[name], _USAGE) for name in ("earmark_usage", "room_usage") if name in both}
    return both | usages


def node(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's details with the fields of both names."""
    return _both(fields, _NODE)


def _both(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return an object in which each field has both of its names; the new one counts if they differ."""
    return {
        **fields,
        **{new: fields[old] for new, old in names.items() if old in fields and new not in fields},
        **{old: fields[new] for new, old in names.items() if new in fields},
    }
