"""The use of the pool in the last hour, day and week: the shares that trained and were held, and the paper's U.

U = A_e / A_s. A_e are the samples that the trainers made. A_s is what the trainers present at each time would have made
on N_eq dedicated nodes, the mean of the pool, by their curves as learned by now.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bftd.core.model.domain import Trainer
from bftd.core.scaling import learning
from bftd.core.static_baseline import WaitingTrainer, best_rate
from bftd.ledger.reader import LedgerReader

WINDOWS_S = (3_600, 86_400, 604_800)
# A window has this many parts; the trainers present in each are read from one of its records.
PARTS = 60
# A part says nothing if a trainer with an unknown curve had nodes in it; the others must be this share.
KNOWN_SHARE = 0.5
# Drivers report the samples made: up to this multiple of what the trainers' curves allow is believed.
BELIEVED_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class Aims:
    """The daemon's aims: its objective, the number of trainers at once, and whether curves are known to be right."""

    objective: str
    pj_max: int
    measured: bool


@dataclass(frozen=True, slots=True)
class RollingPeriod:
    """The last `window_s` seconds, as far as there are records of them.

    `u` is A_e / A_s (docs/howto/history.md), None if the trainers' curves are not known.
    """

    window_s: int
    u: float | None
    pool_node_seconds: float
    held_node_seconds: float
    training_node_seconds: float

    @property
    def training_share(self) -> float | None:
        """The share of the pool's node-seconds in which workers trained, None if the pool had none."""
        return self.training_node_seconds / self.pool_node_seconds if self.pool_node_seconds > 0 else None

    @property
    def held_share(self) -> float | None:
        """The share of the pool's node-seconds in which pilots ran, None if the pool had none."""
        return self.held_node_seconds / self.pool_node_seconds if self.pool_node_seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `GET /v1/history` and `GET /v1/status`; the last two names are older ones."""
        return {
            "window_s": self.window_s,
            "u": self.u,
            "training_share": self.training_share,
            "held_share": self.held_share,
            "pool_node_seconds": self.pool_node_seconds,
            "held_node_seconds": self.held_node_seconds,
            "training_node_seconds": self.training_node_seconds,
            "recovered": self.held_share,
            "used_node_seconds": self.held_node_seconds,
        }


def curve_of(trainer: Trainer) -> Mapping[str, Any]:
    """Return a trainer's properties for a plan, as JSON: sizes, weight, and learned curve (null: not known)."""
    known, sizes = trainer.knowledge, trainer.sizes
    points = learning.curve(known, sizes.high) if known.rate_per_node is not None else None
    return {"low": sizes.low, "high": sizes.high, "only": sizes.only, "weight": trainer.request.weight, "curve": points}


def reckoned(reader: LedgerReader, at_s: int, aims: Aims) -> tuple[RollingPeriod, ...]:
    """Return the windows that end at `at_s`, read from the ledger; raises LedgerError and TooSlow."""
    return tuple(_window(reader, at_s, length_s, aims) for length_s in WINDOWS_S)


@dataclass
class _Part:
    """A part of a window: seconds with records, node-seconds of the pool, samples, the time of one of its records."""

    record_s: int
    covered_s: float = 0.0
    pool_s: float = 0.0
    gained: float = 0.0


def _window(reader: LedgerReader, at_s: int, length_s: int, aims: Aims) -> RollingPeriod:
    with reader.opened() as db:
        rows = db.execute(
            "SELECT at_s, span_s, pool_s, used_s, training_s, gained FROM history WHERE at_s > ? AND at_s <= ? "
            "ORDER BY at_s",
            (at_s - length_s, at_s),
        ).fetchall()
        pool_s, held_s, training_s = (sum(row[place] for row in rows) for place in (2, 3, 4))
        parts = _parts(rows, length_s // PARTS)
        there = [_there(db, part.record_s, aims.pj_max) for part in parts]
    return RollingPeriod(length_s, _efficiency(parts, there, aims), pool_s, held_s, training_s)


def _parts(rows: Sequence[tuple[Any, ...]], part_s: int) -> list[_Part]:
    # at whole multiples of their length: all but the first and the last stay the same over time
    parts: dict[int, _Part] = {}
    for at_s, span_s, pool_s, _, _, gained in rows:
        part = parts.setdefault((at_s - 1) // part_s, _Part(at_s))
        part.covered_s += span_s
        part.pool_s += pool_s
        part.gained += gained
    return list(parts.values())


def _efficiency(parts: Sequence[_Part], there: Sequence[Sequence[WaitingTrainer] | None], aims: Aims) -> float | None:
    known = [(part, trainers) for part, trainers in zip(parts, there, strict=True) if trainers is not None]
    covered_s = sum(part.covered_s for part, _ in known)
    if covered_s <= 0 or covered_s < KNOWN_SHARE * sum(part.covered_s for part in parts):
        return None
    nodes = sum(part.pool_s for part, _ in known) / covered_s
    best = sum(
        part.covered_s * best_rate(trainers, nodes, aims.objective, measured=aims.measured) for part, trainers in known
    )
    return sum(_believed(part, trainers) for part, trainers in known) / best if best > 0 else None


def _believed(part: _Part, trainers: Sequence[WaitingTrainer]) -> float:
    """Return the believable samples of a part: one driver's reports must not make U meaningless for all others."""
    fastest = sum(trainer.curve[-1][1] for trainer in trainers)
    return min(part.gained, BELIEVED_TIMES * fastest * part.covered_s) if fastest > 0 else part.gained


def _there(db: sqlite3.Connection, at_s: int, pj_max: int) -> list[WaitingTrainer] | None:
    """Return the trainers of one record that a plan would consider; None if one with nodes has no known curve.

    Of more than pj_max, those that had nodes come first, then those that arrived first.
    """
    rows = db.execute(
        "SELECT leased > 0, curve FROM history_points JOIN history_trainers ON key = trainer "
        "WHERE at_s = ? AND present >= 0.5 ORDER BY leased > 0 DESC, key LIMIT ?",
        (at_s, pj_max),
    )
    there = []
    for had_nodes, text in rows:
        wanting = _wanting(text)
        if wanting is not None:
            there.append(wanting)
        elif had_nodes:
            return None
    return there


@lru_cache(maxsize=1 << 12)
def _wanting(text: str) -> WaitingTrainer | None:
    """Parse what `curve_of` wrote; None if no curve was known."""
    request = json.loads(text)
    if request.get("curve") is None:
        return None
    only = None if request["only"] is None else tuple(request["only"])
    curve = tuple((int(nodes), float(rate)) for nodes, rate in request["curve"])
    return WaitingTrainer(request["low"], request["high"], only, request["weight"], curve)
