"""The rooms in a daemon's ledger, as the impact benchmark reads them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.impact import rooms
from benchmarks.impact.rooms import Kept
from bftd.service import schema


def test_a_room_is_read_from_its_begin_to_its_end() -> None:
    made = {"job": "7", "nodes": ["n1", "n2"], "leaving": ["n2"]}
    found = rooms.of_events([(10.0, made), (25.0, {"job": "7", "nodes": ["n1", "n2"], "end": "started"})])
    assert found == [Kept("7", ("n1", "n2"), 10.0, 25.0, "started", ("n2",))]


def test_a_room_that_was_never_over_is_still_kept_and_one_whose_begin_is_missing_is_read_as_well() -> None:
    over = {"job": 8, "nodes": "n[3-4]", "end": "gone", "since_s": 4.0}
    found = rooms.of_events([(9.0, over), (10.0, {"job": "7", "nodes": ["n1"]})])
    assert found == [Kept("8", ("n3", "n4"), 4.0, 9.0, "gone"), Kept("7", ("n1",), 10.0, None, "")]


def test_a_room_that_moves_to_other_nodes_is_one_that_went_on() -> None:
    events = [(10.0, {"job": "7", "nodes": ["n1"]}), (12.0, {"job": "7", "nodes": ["n2"]})]
    assert [(room.nodes, room.until_s, room.end) for room in rooms.of_events(events)] == [
        (("n1",), 12.0, rooms.MOVED),
        (("n2",), None, ""),
    ]


def test_a_ledger_is_read_while_it_is_there_and_other_events_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert rooms.read(path) == []
    with closing(sqlite3.connect(path)) as database:
        schema.create(database, "live")
        rows = [(1.0, "pool", json.dumps({"version": 1})), (2.0, "room", json.dumps({"job": "7", "nodes": ["n1"]}))]
        database.executemany("INSERT INTO events (at_s, kind, data) VALUES (?, ?, ?)", rows)
        database.commit()
        assert rooms.read(path) == [Kept("7", ("n1",), 2.0, None, "")]
