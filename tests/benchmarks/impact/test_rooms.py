"""The rooms in a daemon's ledger, as the impact benchmark reads them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.impact import rooms
from benchmarks.impact.rooms import Kept
from bftd.ledger import schema

pytestmark = pytest.mark.slow


def test_a_room_is_read_from_its_begin_to_its_end() -> None:
    made = {"job": "7", "nodes": "n[1-2]", "leaving": "n2", "due_s": None}
    over = {"job": "7", "end": "started", "duration_s": 15.0, "kept_node_seconds": 21.5}
    found = rooms.of_events([(10.0, "room", made), (25.0, "room_over", over)])
    assert found == [Kept("7", ("n1", "n2"), 10.0, 25.0, "started", ("n2",), 21.5)]


def test_a_ledger_is_read_while_it_is_there_and_other_events_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert rooms.read(path) == []
    with closing(sqlite3.connect(path)) as database:
        schema.create(database, "live")
        rows = [(1.0, "pool", json.dumps({"version": 1})), (2.0, "room", json.dumps({"job": "7", "nodes": ["n1"]}))]
        database.executemany("INSERT INTO events (at_s, kind, data) VALUES (?, ?, ?)", rows)
        database.commit()
        assert rooms.read(path) == [Kept("7", ("n1",), 2.0)]
