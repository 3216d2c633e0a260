"""Answers to `GET /v1/status`: made beside the loop, and on a large cluster shared for a moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bftd import __version__
from bftd.base import old_names
from bftd.http.auth.caller import Caller
from bftd.http.auth.privacy import Privacy
from bftd.http.encoding import encoded
from bftd.http.response_cache import ResponseCache
from bftd.service.service import Service
from slurm_plugin.nodeset import fold

# The value of the query's `nodes`: `bft status` shows groups of nodes only.
FOLDED = "folded"
# With at most this many nodes and trainers each answer is made anew; that of a larger cluster is made once a second.
FRESH_MOST = 500
KEPT_S = 1.0


class Overviews:
    """Statuses, made one at a time in a thread; callers that ask for the same one meanwhile share it."""

    def __init__(self) -> None:
        self._shared = ResponseCache[tuple[str, bool, bool, str], bytes]("status")
        self._folds = Folds()

    async def answer(self, service: Service, caller: Caller, nodes: str) -> bytes:
        """Return the JSON of a status for this caller."""
        state, private = service.state, service.private
        # callers without trainers all see the same
        owner = any(trainer.user == caller.user for trainer in state.trainers.values())
        key = (caller.user if owner and not caller.admin else "", caller.admin, private, nodes)

        def prepare() -> Callable[[], bytes]:
            later, folds = service.overview_later(__version__), self._folds if nodes == FOLDED else None
            return lambda: _encoded(later(), Privacy(caller, state, private), folds)

        anew = len(state.pool.nodes) + len(state.trainers) <= FRESH_MOST
        return await self._shared.answer(key, prepare, KEPT_S, anew=anew)

    def close(self) -> None:
        """Let the thread go."""
        self._shared.close()


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
        groups[(node["class"], node["kind"], *does)].append(node["name"])
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
    earmarks = [item | {name: folds.fold(item[name]) for name in ("nodes", "leaving")} for item in shown["earmarks"]]
    trainers = [item | {"on": folds.fold(on.get(item["id"], ()))} for item in shown["trainers"]]
    return {name: value for name, value in shown.items() if name != "nodes"} | {
        "node_groups": listed,
        "trainers": trainers,
        "earmarks": earmarks,
        "rooms": earmarks,  # until 0.2
    }


def _encoded(shown: dict[str, Any], privacy: Privacy, folds: Folds | None) -> bytes:
    seen = old_names.status(privacy.overview(shown))
    return encoded(seen if folds is None else folded(seen, folds))
