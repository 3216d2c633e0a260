"""History in the ledger: a record per minute for a day, one per ten minutes for a month, within a maximum size.

A record covers the time up to `at_s`: nodes and sizes of trainers are means over its `span_s` seconds, and node-seconds
and samples are those of that time. So a sum over records does not change when they are merged. All functions run inside
the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.core.sampling import NODE_STATES

FINE_S = 86_400
COARSE_S = 600
KEEP_S = 30 * 86_400
# The approximate size of a row; history may take this share of the ledger's size, and never more rows than this.
ROW_BYTES = 60
SHARE = 0.25
ROWS_MOST = 1_000_000
# The most records that one step of upkeep deletes: some milliseconds.
_RECORDS_A_STEP = 10

_STATES = ", ".join(NODE_STATES)
_RECORD = (
    f"INSERT OR REPLACE INTO history (at_s, span_s, {_STATES}, pool_s, used_s, training_s, gained, running, points, "
    "coarse) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_POINT = "INSERT INTO history_points VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NAME = """
INSERT INTO history_trainers (id, name, user, last_s, curve) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
name = excluded.name, user = excluded.user, last_s = excluded.last_s, curve = excluded.curve
"""
# The trainers of a record stay known as long as the record is kept.
_SEEN = "UPDATE history_trainers SET last_s = max(last_s, ?) WHERE id IN (SELECT value FROM json_each(?))"
_KEYS = "SELECT id, key FROM history_trainers WHERE id IN (SELECT value FROM json_each(?))"
_WITHIN = "at_s > :after AND at_s <= :up_to"
_MEANS = ", ".join(f"sum({state} * span_s) / sum(span_s)" for state in NODE_STATES)
_RUNNING = "sum(running * span_s) / sum(span_s)"


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """One trainer in a record.

    `gained` are the samples that it made meanwhile, and `present` is the part of the time in which it wanted nodes.
    """

    trainer: str
    working: float
    leased: float
    samples_per_s: float
    step: int
    samples: float
    gained: float
    present: float


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """The pool during the `span_s` seconds up to `at_s`, whole unix seconds; node-seconds are those of that time."""

    at_s: int
    span_s: int
    nodes: Mapping[str, float]
    pool_s: float
    used_s: float
    training_s: float
    points: tuple[TrainerRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainerIdentity:
    """A trainer as history knows it: its name, its user, and its properties for a plan (`curve`), as JSON."""

    id: str
    name: str
    user: str
    curve: Any


def points_most(max_bytes: int) -> int:
    """Return how many rows history may have in a ledger of at most `max_bytes`."""
    return min(ROWS_MOST, int(SHARE * max_bytes / ROW_BYTES))


def add(db: sqlite3.Connection, records: Sequence[PoolRecord], named: Iterable[TrainerIdentity]) -> None:
    """Write records, and the trainers that are new or have changed."""
    last_s = records[-1].at_s
    db.executemany(_NAME, [(item.id, item.name, item.user, last_s, json.dumps(item.curve)) for item in named])
    ids = sorted({point.trainer for record in records for point in record.points})
    db.execute(_SEEN, (last_s, json.dumps(ids)))
    keys = dict(db.execute(_KEYS, (json.dumps(ids),)))
    for record in records:
        db.execute("DELETE FROM history_points WHERE at_s = ?", (record.at_s,))
        points = [point for point in record.points if point.trainer in keys]
        counts = [record.nodes.get(state, 0) for state in NODE_STATES]
        gained = sum(point.gained for point in points)
        running = sum(point.leased > 0 for point in record.points)
        sums = (record.pool_s, record.used_s, record.training_s, gained, running)
        db.execute(_RECORD, (record.at_s, record.span_s, *counts, *sums, len(points), 0))
        db.executemany(
            _POINT,
            [
                (
                    record.at_s,
                    keys[point.trainer],
                    point.working,
                    point.leased,
                    point.samples_per_s,
                    point.step,
                    point.samples,
                    point.gained,
                    point.present,
                )
                for point in points
            ],
        )


def last(db: sqlite3.Connection) -> tuple[int | None, dict[str, float]]:
    """Return the time of the last record, and the samples of each trainer at that time."""
    (at_s,) = db.execute("SELECT max(at_s) FROM history").fetchone()
    rows = db.execute(
        "SELECT id, samples FROM history_points JOIN history_trainers ON key = trainer WHERE at_s = ?", (at_s,)
    )
    return at_s, dict(rows)


def tidy(db: sqlite3.Connection, now_s: float, points_most: int) -> bool:
    """Do a few milliseconds of upkeep; returns whether there is more to do."""
    return _drop_ahead(db, now_s) or _drop_old(db, now_s, points_most) or _thin(db, now_s) or _forget(db, now_s)


def _drop_ahead(db: sqlite3.Connection, now_s: float) -> bool:
    """Drop records of future times: the clock was set back."""
    rows = db.execute("SELECT at_s FROM history WHERE at_s > ? LIMIT ?", (now_s + 1, _RECORDS_A_STEP)).fetchall()
    return _drop(db, [at_s for (at_s,) in rows])


def _drop_old(db: sqlite3.Connection, now_s: float, points_most: int) -> bool:
    """Drop expired records, and the oldest ones if there are too many."""
    (points,) = db.execute("SELECT sum(points + 1) FROM history").fetchone()
    too_many = (points or 0) > points_most
    rows = db.execute("SELECT at_s FROM history ORDER BY at_s LIMIT ?", (_RECORDS_A_STEP,)).fetchall()
    return _drop(db, [at_s for (at_s,) in rows if too_many or at_s < now_s - KEEP_S])


def _drop(db: sqlite3.Connection, times_s: Sequence[int]) -> bool:
    for table in ("history", "history_points"):
        db.executemany(f"DELETE FROM {table} WHERE at_s = ?", [(at_s,) for at_s in times_s])
    return bool(times_s)


def _thin(db: sqlite3.Connection, now_s: float) -> bool:
    """Merge the records of ten minutes that are more than a day old."""
    (first_s,) = db.execute("SELECT min(at_s) FROM history WHERE NOT coarse").fetchone()
    if first_s is None:
        return False
    after = (first_s - 1) // COARSE_S * COARSE_S
    within = {"after": after, "up_to": after + COARSE_S}
    if after + COARSE_S > now_s - FINE_S:
        return False
    record = db.execute(
        f"SELECT max(at_s), sum(span_s), {_MEANS}, sum(pool_s), sum(used_s), sum(training_s), sum(gained), {_RUNNING} "
        f"FROM history WHERE {_WITHIN}",
        within,
    ).fetchone()
    points = db.execute(
        "SELECT :at, trainer, sum(working * span_s) / :span, sum(history_points.leased * span_s) / :span, "
        "sum(rate * span_s) / :span, max(step), max(samples), sum(history_points.gained), "
        f"sum(present * span_s) / :span FROM history_points JOIN history USING (at_s) WHERE {_WITHIN} GROUP BY trainer",
        within | {"at": record[0], "span": float(record[1])},
    ).fetchall()
    for table in ("history", "history_points"):
        db.execute(f"DELETE FROM {table} WHERE {_WITHIN}", within)
    db.execute(_RECORD, (*record, len(points), 1))
    db.executemany(_POINT, points)
    return True


def _forget(db: sqlite3.Connection, now_s: float) -> bool:
    """Forget trainers without records."""
    done = db.execute(
        "DELETE FROM history_trainers WHERE key IN (SELECT key FROM history_trainers WHERE last_s < ? LIMIT 200)",
        (now_s - KEEP_S - 3600,),
    )
    return done.rowcount > 0
