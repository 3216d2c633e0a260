"""What was made of the pool in the last hour, day and week: the share of it that was used, and the paper's U."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bftd.core import learn
from bftd.core.domain import Trainer
from bftd.service.reader import Reader

WINDOWS_S = (3_600, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class Window:
    """The last `window_s` seconds, as far as there are records of them.

    `u` is A_e / A_s (docs/history.md), None where the curves of trainers are not known; `recovered` is the part of the
    pool's node-seconds in which pilots ran, None where there were none.
    """

    window_s: int
    u: float | None
    recovered: float | None
    pool_node_seconds: float
    used_node_seconds: float
    training_node_seconds: float

    def to_json(self) -> dict[str, Any]:
        """As `GET /v1/history` and `GET /v1/status` tell it."""
        return {name: getattr(self, name) for name in self.__slots__}


def curve_of(trainer: Trainer) -> Mapping[str, Any]:
    """What a trainer is to a plan, as JSON: its sizes, its weight, and its curve as learned (null: not known)."""
    known, sizes = trainer.knowledge, trainer.sizes
    points = learn.curve(known, sizes.high) if known.rate_per_node is not None else None
    return {"low": sizes.low, "high": sizes.high, "only": sizes.only, "weight": trainer.request.weight, "curve": points}


def reckoned(reader: Reader, at_s: int, objective: str, pj_max: int) -> tuple[Window, ...]:
    """The windows that end at `at_s`, read from the ledger; raises LedgerError and TooSlow."""
    with reader.opened() as db:
        return tuple(_window(db, at_s, length_s) for length_s in WINDOWS_S)


def _window(db: sqlite3.Connection, at_s: int, length_s: int) -> Window:
    sums = db.execute(
        "SELECT total(pool_s), total(used_s), total(training_s) FROM history WHERE at_s > ? AND at_s <= ?",
        (at_s - length_s, at_s),
    ).fetchone()
    pool_s, used_s, training_s = sums
    return Window(length_s, None, used_s / pool_s if pool_s > 0 else None, pool_s, used_s, training_s)
