"""The pool's last hours out of the ledger, with the trainers of that time: what a replay of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bftd import keys
from bftd.core import likeness
from bftd.core.domain import State
from bftd.service.reader import Reader, Told
from slurm_plugin.nodeset import fold

FORMAT = 1
# A start of the daemon takes a few seconds until its first snapshot. What the ledger has of these is of the new life.
_START_S = 30.0
# So many names are not worth folding, which takes longer than all else.
_FEW = 8
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
    wholes, _ = ledger.newest("pool_whole", since_s, before=True)
    begin_s = min([since_s, *(item.at_s for item in wholes[:1])])
    changes, all_there = ledger.newest("pool", begin_s)
    if not all_there:  # what is told begins with all of the pool, and has all changes from there on
        wholes = [item for item in wholes if item.rowid > changes[0].rowid]
    told = {item.rowid: _whole(ledger, item) for item in wholes}
    told |= {item.rowid: change for item in changes if len(change := _change(item)) > 1}
    clock, _ = ledger.newest("clock_set", begin_s)
    told |= {item.rowid: {"at_s": item.at_s, "by_s": float(item.data["by_s"])} for item in clock}
    from_row = wholes[0].rowid if wholes else float("inf")
    trainers, left_out = _trainers(ledger, state, since_s)
    settings = {key.name: getattr(getattr(state.settings, key.section), key.name) for key in keys.tunable()}
    return {
        "format": FORMAT,
        "time_s": now_s,
        "since_s": since_s,
        "partition_nodes": len(state.pool.nodes),
        "classes": len(state.pool.classes),
        "settings": settings,
        "changes": [told[row] for row in sorted(told) if row >= from_row],
        "trainers": trainers,
        "left_out": left_out,
    }


def _whole(ledger: Reader, item: Told) -> dict[str, Any]:
    told = {"at_s": item.at_s, "nodes": item.data["nodes"], "beyond": item.data["beyond"]}
    if not item.data["first"]:
        return told
    return told | {"seen_s": ledger.last_before(item.rowid, item.at_s - _START_S)}


def _change(item: Told) -> dict[str, Any]:
    names = ("joined", "left", "beyond_joined", "beyond_left")
    return {"at_s": item.at_s} | {name: _folded(item.data[name]) for name in names if item.data.get(name)}


def _folded(names: Sequence[str]) -> str:
    return fold(names) if len(names) > _FEW else ",".join(names)


def _trainers(ledger: Reader, state: State, since_s: float) -> tuple[list[dict[str, Any]], int]:
    """Those that were there since a time, and how many of them nothing is known of."""
    ended = [
        (item.trainer or "", item.data["was"] | {"ended_s": item.at_s} if "was" in item.data else None)
        for item in reversed(ledger.newest("finished", since_s)[0])
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
