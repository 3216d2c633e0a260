"""The pool's last hours out of the ledger, with the trainers of that time: what a replay of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bftd import keys
from bftd.core import likeness
from bftd.core.domain import State
from bftd.service.reader import Reader
from slurm_plugin.nodeset import fold

FORMAT = 1
# A start of the daemon takes a few seconds until its first snapshot. What the ledger has of these is of the new life.
_START_S = 30.0
# Trainers told of at once: those that ended last are told first.
TRAINERS_MOST = 1000


def read(ledger: Reader, state: State, since_s: float, now_s: float) -> dict[str, Any]:
    """The answer of `GET /v1/pool-trace`; reads the ledger, so that it belongs in a thread.

    `changes` are in order of time, each with nodes that `joined` and `left`, folded: of the pool and of what only
    `max_nodes` or `max_share` keep out of it (`beyond_...`). One with `nodes` tells all of the pool instead; where it
    has `seen_s`, the daemon did not run since then. One with `by_s` says that the clock was set. A trainer has
    `began_samples` at `since_s` or at its arrival, whichever is later, and `ended_s` null while it is there. `left_out`
    counts those that have ended and of whose speed nothing was kept.
    """
    wholes = ledger.newest("pool_whole", since_s, before=True)
    from_row, from_s = (wholes[0][0], wholes[0][1]) if wholes else (0, now_s)
    told: list[tuple[int, dict[str, Any]]] = [(row, _whole(ledger, row, at_s, data)) for row, at_s, _, data in wholes]
    changed = ((row, _change(at_s, data)) for row, at_s, _, data in ledger.newest("pool", min(since_s, from_s)))
    told += [(row, change) for row, change in changed if len(change) > 1]
    clock = ledger.newest("clock_set", from_s)
    told += [(row, {"at_s": at_s, "by_s": float(data["by_s"])}) for row, at_s, _, data in clock]
    trainers, left_out = _trainers(ledger, state, since_s)
    settings = {key.name: getattr(getattr(state.settings, key.section), key.name) for key in keys.tunable()}
    return {
        "format": FORMAT,
        "time_s": now_s,
        "since_s": since_s,
        "partition_nodes": len(state.pool.nodes),
        "classes": len(state.pool.classes),
        "settings": settings,
        "changes": [item for row, item in sorted(told, key=lambda pair: pair[0]) if row >= from_row],
        "trainers": trainers,
        "left_out": left_out,
    }


def _whole(ledger: Reader, row: int, at_s: float, data: Mapping[str, Any]) -> dict[str, Any]:
    told = {"at_s": at_s, "nodes": data["nodes"], "beyond": data["beyond"]}
    if not data["first"]:
        return told
    return told | {"seen_s": ledger.last_before(row, at_s - _START_S)}


def _change(at_s: float, data: Mapping[str, Any]) -> dict[str, Any]:
    names = ("joined", "left", "beyond_joined", "beyond_left")
    return {"at_s": at_s} | {name: _folded(data[name]) for name in names if data.get(name)}


def _folded(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else fold(names)


def _trainers(ledger: Reader, state: State, since_s: float) -> tuple[list[dict[str, Any]], int]:
    """Those that were there since a time, and how many of them nothing is known of."""
    ended = [
        (id_ or "", data["was"] | {"ended_s": at_s} if "was" in data else None)
        for _, at_s, id_, data in reversed(ledger.newest("finished", since_s))
    ]
    here = [(item.id, likeness.of(item) | {"ended_s": None}) for item in state.trainers.values() if item.active]
    known = [(id_, told) for id_, told in here + ended if told is not None][:TRAINERS_MOST]
    listed = [told | {"id": id_, "began_samples": _began(ledger, id_, told, since_s)} for id_, told in known]
    return listed, len(here) + len(ended) - len(known)


def _began(ledger: Reader, id_: str, told: Mapping[str, Any], since_s: float) -> float:
    """The samples that a trainer had when it came into the time that is asked for."""
    if told["arrived_s"] >= since_s:
        return 0.0
    return ledger.samples_at(id_, since_s) or 0.0
