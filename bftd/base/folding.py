"""A status with its nodes folded: sets of names as one text, n[1-3]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_plugin.nodeset import fold


class Folds:
    """Sets of nodes as texts; those of the last status are remembered, since few have changed by the next one."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], str] = {}
        self._now: dict[tuple[str, ...], str] = {}

    def begin(self) -> None:
        """Forget the sets that the last status did not need."""
        self._before, self._now = self._now, {}

    def fold(self, names: Sequence[str]) -> str:
        """Return the names as one text, n[1-3]; "" if there are none."""
        key = tuple(names)
        text = self._now.get(key) or self._before.get(key)
        if text is None:
            text = fold(names) if names else ""
        self._now[key] = text
        return text


def folded(shown: Mapping[str, Any], folds: Folds) -> dict[str, Any]:
    """Return a status with nodes grouped by what they do and why, and those of each trainer and earmark as one text."""
    folds.begin()
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    on: dict[str, list[str]] = defaultdict(list)
    for node in shown["nodes"]:
        does = (node["trainer"], node["lease_state"], node["in_pool"], node["why"])
        groups[(node.get("class", ""), node.get("kind"), *does)].append(node["name"])
        if node["trainer"] and node["lease_state"] != "revoked":
            on[node["trainer"]].append(node["name"])
    listed = [
        {
            "nodes": folds.fold(names),
            "count": len(names),
            "class": node_class,
            "kind": kind,
            "trainer": trainer,
            "lease_state": state,
            "in_pool": in_pool,
            "why": why,
        }
        for (node_class, kind, trainer, state, in_pool, why), names in groups.items()
    ]
    earmarks = [
        item | {name: folds.fold(item.get(name, ())) for name in ("nodes", "leaving")}
        for item in shown.get("earmarks", ())
    ]
    trainers = [item | {"on": folds.fold(on.get(item["id"], ()))} for item in shown["trainers"]]
    return {name: value for name, value in shown.items() if name != "nodes"} | {
        "node_groups": listed,
        "trainers": trainers,
        "earmarks": earmarks,
        "rooms": earmarks,  # until 1.1
    }
