"""The earmarks in a daemon's ledger, as the impact benchmark reads them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.impact import earmarks
from benchmarks.impact.earmarks import Kept
from bftd.ledger import schema

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "kind_over"), [("earmark", "earmark_over"), ("room", "room_over")])
def test_an_earmark_is_read_from_its_begin_to_its_end(kind: str, kind_over: str) -> None:
    made = {"job": "7", "nodes": "n[1-2]", "leaving": "n2", "due_s": None}
    over = {"job": "7", "end": "started", "duration_s": 15.0, "kept_node_seconds": 21.5}
    found = earmarks.of_events([(10.0, kind, made), (25.0, kind_over, over)])
    assert found == [Kept("7", ("n1", "n2"), 10.0, 25.0, "started", ("n2",), 21.5)]


@pytest.mark.parametrize("kind", ["earmark", "room"])
def test_a_ledger_is_read_while_it_is_there_and_other_events_are_passed_over(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger.sqlite"
    assert earmarks.read(path) == []
    with closing(sqlite3.connect(path)) as database:
        schema.create(database, "live")
        rows = [(1.0, "pool", json.dumps({"version": 1})), (2.0, kind, json.dumps({"job": "7", "nodes": ["n1"]}))]
        database.executemany("INSERT INTO events (at_s, kind, data) VALUES (?, ?, ?)", rows)
        database.commit()
        assert earmarks.read(path) == [Kept("7", ("n1",), 2.0)]
