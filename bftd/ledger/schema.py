"""The ledger's tables, and the upgrade of an older ledger to this version."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

VERSION = 4

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trainers (id TEXT PRIMARY KEY, arrived_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (id TEXT PRIMARY KEY, granted_s REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    rowid INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, kind TEXT NOT NULL, trainer TEXT, node TEXT,
    data TEXT NOT NULL
);
CREATE TABLE usage (
    hour_s INTEGER NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL,
    used_s REAL NOT NULL, training_s REAL NOT NULL, leaving_s REAL NOT NULL,
    PRIMARY KEY (hour_s, user, account)
) WITHOUT ROWID;
CREATE TABLE history (
    at_s INTEGER PRIMARY KEY, span_s INTEGER NOT NULL,
    regular REAL NOT NULL, planned REAL NOT NULL, leased REAL NOT NULL, idle REAL NOT NULL, away REAL NOT NULL,
    pool_s REAL NOT NULL, used_s REAL NOT NULL, training_s REAL NOT NULL,
    gained REAL NOT NULL, running REAL NOT NULL, points INTEGER NOT NULL, coarse INTEGER NOT NULL
);
CREATE TABLE history_points (
    at_s INTEGER NOT NULL, trainer INTEGER NOT NULL, working REAL NOT NULL, leased REAL NOT NULL, rate REAL NOT NULL,
    step INTEGER NOT NULL, samples REAL NOT NULL, gained REAL NOT NULL, present REAL NOT NULL,
    PRIMARY KEY (at_s, trainer)
) WITHOUT ROWID;
CREATE TABLE history_trainers (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, user TEXT NOT NULL, last_s INTEGER NOT NULL,
    curve TEXT NOT NULL
);
"""
INDICES = """
CREATE INDEX events_of_trainer ON events (trainer, kind);
CREATE INDEX events_of_kind ON events (kind);
CREATE INDEX events_of_node ON events (node) WHERE node IS NOT NULL;
"""

_REQUESTED = ("id", "name", "user", "backend", "partition", "weight", "workers_per_node")


def version_of(db: sqlite3.Connection) -> int:
    """Return the version that wrote a ledger, 0 for a new file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def create(db: sqlite3.Connection, mode: str) -> None:
    """Make a new file a ledger of this version, for a daemon in `mode`."""
    meta = f"INSERT INTO meta VALUES ('mode', '{json.dumps(mode)}');"
    db.executescript(f"BEGIN; {TABLES} {INDICES} {meta} PRAGMA user_version={VERSION}; COMMIT;")


def upgrade(db: sqlite3.Connection, version: int) -> None:
    """Bring the rows of an older ledger to this version, inside the caller's transaction."""
    for older in range(version, VERSION):
        if older in _UPGRADES:
            _UPGRADES[older](db)


def _nest_requests(db: sqlite3.Connection) -> None:
    """Upgrade 1 to 2: move what a driver asked for into the trainer's `request`."""
    rows = db.execute("SELECT id, body FROM trainers").fetchall()
    bodies = [(json.dumps(_nested(json.loads(body))), id_) for id_, body in rows]
    db.executemany("UPDATE trainers SET body = ? WHERE id = ?", bodies)


def _nested(body: Mapping[str, Any]) -> dict[str, Any]:
    known = body.get("knowledge", {})
    request = {name: body[name] for name in _REQUESTED if name in body} | {
        "sizes": {"low": body["nodes_min"], "high": body["nodes_max"], "only": body.get("sizes")},
        "curve": known.get("given", []),
        "up_cost_s": known.get("given_up_cost_s"),
        "down_cost_s": known.get("given_down_cost_s"),
    }
    moved = {*_REQUESTED, "nodes_min", "nodes_max", "sizes"}
    return {"request": request} | {name: value for name, value in body.items() if name not in moved}


_UPGRADES: Mapping[int, Callable[[sqlite3.Connection], None]] = {1: _nest_requests}
