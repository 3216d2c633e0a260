"""The pool's last hours from the ledger, with the trainers of that time: the input for a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bftd.config import keys
from bftd.core.model import trainer_summary
from bftd.core.model.domain import State
from bftd.ledger.reader import LedgerEvent, LedgerReader
from slurm_plugin.nodeset import fold

FORMAT = 1
# After a start the daemon takes a few seconds until its first snapshot. Events in that time belong to the new process.
_START_S = 30.0
# Folding takes longer than everything else, and is not worth it for so few names.
_FEW = 8
# The most trainers in an answer: active ones come first, then those that ended last.
TRAINERS_MOST = 1000


def read(ledger: LedgerReader, state: State, since_s: float, now_s: float) -> dict[str, Any]:
    """Return the answer of `GET /v1/pool-trace`; call it in a thread, since it reads the ledger.

    `changes` are in order of time, each with nodes that `joined` and `left`, folded: of the pool, and of the nodes that
    only `max_nodes` or `max_share` keep out of it (`beyond_...`). A change with `nodes` lists the whole pool instead;
    if it has `seen_s`, the daemon did not run between then and the change. A change with `by_s` says that the clock was
    set. A trainer has `began_samples` at `since_s` or at its arrival, whichever is later, and `ended_s` is null while
    it is there. `left_out` counts the trainers that have ended without a record of their speed, and those beyond
    TRAINERS_MOST.
    """
    wholes, _ = ledger.newest("pool_whole", since_s, before=True)
    begin_s = min([since_s, *(item.at_s for item in wholes[:1])])
    changes, all_there = ledger.newest("pool", begin_s)
    if not all_there:  # the trace begins with a whole pool, and has all changes from there on
        wholes = [item for item in wholes if item.rowid > changes[0].rowid]
    entries = {item.rowid: _whole(ledger, item) for item in wholes}
    entries |= {item.rowid: change for item in changes if len(change := _change(item)) > 1}
    clock, _ = ledger.newest("clock_set", begin_s)
    entries |= {item.rowid: {"at_s": item.at_s, "by_s": float(item.data["by_s"])} for item in clock}
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
        "changes": [entries[row] for row in sorted(entries) if row >= from_row],
        "trainers": trainers,
        "left_out": left_out,
    }


def _whole(ledger: LedgerReader, item: LedgerEvent) -> dict[str, Any]:
    entry = {"at_s": item.at_s, "nodes": item.data["nodes"], "beyond": item.data["beyond"]}
    if not item.data["first"]:
        return entry
    return entry | {"seen_s": ledger.last_before(item.rowid, item.at_s - _START_S)}


def _change(item: LedgerEvent) -> dict[str, Any]:
    names = ("joined", "left", "beyond_joined", "beyond_left")
    return {"at_s": item.at_s} | {name: _folded(item.data[name]) for name in names if item.data.get(name)}


def _folded(names: Sequence[str]) -> str:
    return fold(names) if len(names) > _FEW else ",".join(names)


def _trainers(ledger: LedgerReader, state: State, since_s: float) -> tuple[list[dict[str, Any]], int]:
    """Return the trainers present since `since_s`, and how many of them are left out."""
    ended = [
        (item.trainer or "", item.data["was"] | {"ended_s": item.at_s} if "was" in item.data else None)
        for item in reversed(ledger.newest("finished", since_s)[0])
    ]
    here = [(item.id, trainer_summary.of(item) | {"ended_s": None}) for item in state.trainers.values() if item.active]
    known = [(id_, trainer) for id_, trainer in here + ended if trainer is not None][:TRAINERS_MOST]
    listed = [trainer | {"id": id_, "began_samples": _began(ledger, id_, trainer, since_s)} for id_, trainer in known]
    return listed, len(here) + len(ended) - len(known)


def _began(ledger: LedgerReader, id_: str, trainer: Mapping[str, Any], since_s: float) -> float:
    """Return the samples that a trainer had at `since_s`; 0 for one that arrived later."""
    if trainer["arrived_s"] >= since_s:
        return 0.0
    return ledger.samples_at(id_, since_s) or 0.0
