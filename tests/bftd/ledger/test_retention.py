"""The ledger stays small while the daemon runs: old events go, the file shrinks, progress is one row a minute."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bftd.core.model.domain import Happened, State
from bftd.core.model.events import Finished, Registered
from bftd.ledger import retention, wal
from bftd.ledger.file import Ledger
from bftd.ledger.retention import KEEP_EVENTS_S
from bftd.protocol.reports import ProgressReport, SuspendReport
from tests.bftd.builders import registration, reported
from tests.bftd.ledger.test_file import Clock, see, start
from tests.support.messages import says, wording
from tests.support.waiting import STILL_S

DAY_S = 86400.0


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(Ledger(path)) as opened:
        yield opened


def happen(ledger: Ledger, at_s: float, count: int, text: str = "", kind: str = "note") -> None:
    """Events, in one step."""
    told = [Happened(kind, "1", None, {"number": number, "text": text}) for number in range(count)]
    ledger.save(State(), State(time_s=at_s), told)


def tend(ledger: Ledger, now_s: float, steps: int) -> None:
    for _ in range(steps):
        ledger.maintain(now_s)


def files_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def progress(at_s: float, step: int) -> ProgressReport:
    return ProgressReport(at_s, step=step, samples=10.0 * step, samples_per_s=9.0, nodes=1)


def test_regression_a_daemon_that_runs_for_months_drops_old_events_and_its_file_shrinks(
    path: Path, ledger: Ledger
) -> None:
    happen(ledger, 0.0, 20_000, "x" * 200)
    happen(ledger, KEEP_EVENTS_S, 3)
    tend(ledger, KEEP_EVENTS_S - 1, 5)
    assert len(ledger.events(0, 100_000)) == 20_003
    assert ledger.size()["bytes"] > 4_000_000
    tend(ledger, KEEP_EVENTS_S + 1, 45)
    assert [event["at_s"] for event in ledger.events(0, 100)] == [KEEP_EVENTS_S] * 3
    tend(ledger, KEEP_EVENTS_S + 1, 30)
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < 1_000_000


def test_one_step_deletes_a_bounded_number_of_rows_and_more_only_where_more_came(ledger: Ledger) -> None:
    happen(ledger, 0.0, 10_000)
    tend(ledger, 1.0, 1)
    tend(ledger, KEEP_EVENTS_S + 1, 1)
    assert len(ledger.events(0, 100_000)) == 10_000 - retention.BATCH
    happen(ledger, KEEP_EVENTS_S, 2_000)
    tend(ledger, KEEP_EVENTS_S + 1, 1)
    assert len(ledger.events(0, 100_000)) == 12_000 - retention.BATCH - 4_000


def test_a_row_of_a_clock_that_ran_ahead_keeps_no_older_one_behind_it(ledger: Ledger) -> None:
    happen(ledger, 0.0, 1)
    happen(ledger, 100 * DAY_S, 1)
    happen(ledger, DAY_S, 1)
    happen(ledger, 40 * DAY_S, 1)
    tend(ledger, 60 * DAY_S, 3)
    assert [event["at_s"] for event in ledger.events(0, 100)] == [40 * DAY_S]


@pytest.mark.slow
def test_regression_the_ledger_is_held_to_its_size_by_dropping_the_oldest_events_and_nothing_else(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, most = Clock(), 12_000_000
    service = start(path, clock)
    service.apply(Registered(clock.now, registration("1", nodes_max=1)))
    see(service, clock, "n1")
    see(service, clock, "n1")
    before = service.state
    service.ledger.close()
    with closing(Ledger(path, max_bytes=most)) as ledger:
        for second in range(200):
            happen(ledger, clock.now + second, 100, "x" * 1000)
            ledger.maintain(clock.now + second)
            assert files_bytes(path) < 1.1 * most
        size = ledger.size()
        events = ledger.events(0, 100_000)
        assert size["full"]
        assert size["bytes"] <= most
        assert events[-1]["at_s"] == clock.now + 199
        assert events[0]["at_s"] == size["oldest_event_s"] > clock.now
        assert 3_000 < len(events) < 10_000
        # after a day in which nothing more had to go, it is no longer called full
        tend(ledger, clock.now + 1e5, 2)
        assert not ledger.size()["full"]
        kept = ledger.load(clock.now)
    told = [record.message for record in caplog.records if "max_bytes" in record.message]
    assert len(told) == 1
    assert says(told[0], "service.upkeep.full", max_bytes="12,000,000")
    assert (kept.trainers.keys(), kept.leases.keys(), kept.usage) == (
        before.trainers.keys(), before.leases.keys(), before.usage,
    )  # fmt: skip


@pytest.mark.slow
def test_a_reader_that_stands_still_is_named_and_costs_half_of_the_events_at_most(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LONG_LOG_BYTES", 8_000_000)
    with closing(Ledger(path, max_bytes=10_000_000)) as held, closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        for second in range(80):
            happen(held, float(second), 500, "x" * 200)
            held.maintain(float(second))
        assert len(held.events(0, 100_000)) > 10_000  # about 4 MB
        reader.execute("ROLLBACK")
        for second in range(80, 130):
            happen(held, float(second), 10)
            held.maintain(float(second))
        assert held.size()["bytes"] < 10_000_000
    told = [record.message for record in caplog.records if "fuser" in record.message]
    assert told == [wording("service.upkeep.read_without_end", log_path=f"{path}-wal")]


def test_regression_progress_of_each_second_is_one_row_a_minute_and_the_last_before_anything_else(path: Path) -> None:
    clock = Clock()
    service = start(path, clock)
    for id_ in ("1", "2"):
        service.apply(Registered(clock.now, registration(id_, nodes_max=1)))
    begun_s = clock.now
    for second in range(151):
        clock.now = begun_s + second
        for id_ in ("1", "2"):
            service.apply(reported(clock.now, id_, progress(clock.now, second)))
    service.apply(reported(clock.now, "1", SuspendReport(clock.now, 150)))
    clock.now += 10
    service.apply(reported(clock.now, "1", progress(clock.now, 151)))
    service.apply(reported(clock.now, "1", progress(clock.now, 152)))
    service.apply(Finished(clock.now, "1", 0, ""))
    rows = [(event["kind"], event["data"].get("step")) for event in service.ledger.events(0, 1000, ["1"])]
    kinds = ("progress", "suspend", "finished")
    assert [row for row in rows if row[0] in kinds] == [
        ("progress", 0), ("progress", 60), ("progress", 120), ("progress", 150), ("suspend", 150), ("progress", 152),
        ("finished", None),
    ]  # fmt: skip
    # what a trainer said last is written although it says nothing more
    steps = [
        event["data"].get("step") for event in service.ledger.events(0, 1000, ["2"]) if event["kind"] == "progress"
    ]
    assert steps == [0, 60, 120]
    clock.now += 100
    see(service, clock, "n1")
    last = [event for event in service.ledger.events(0, 1000, ["2"]) if event["kind"] == "progress"][-1]
    assert (last["at_s"], last["data"]["step"]) == (begun_s + 150, 150)
    service.ledger.close()


def test_progress_that_is_held_back_is_written_when_the_daemon_stops(path: Path) -> None:
    clock = Clock()
    service = start(path, clock)
    service.apply(Registered(clock.now, registration("1")))
    for second in range(10):
        service.apply(reported(clock.now, "1", progress(clock.now + second, second)))
    service.ledger.close()
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT data FROM events WHERE kind = 'progress' ORDER BY rowid").fetchall()
    assert [json.loads(data)["step"] for (data,) in found] == [0, 9]


@pytest.mark.slow
def test_a_ledger_that_was_killed_goes_on_with_the_next_number_of_an_event(path: Path) -> None:
    code = (
        "import os, sys; from bftd.core.model.domain import Happened, State; from bftd.ledger.file import Ledger;"
        "ledger = Ledger(sys.argv[1]);"
        "[ledger.save(State(), State(time_s=1.0), [Happened('note', '1')]) for _ in range(3)]; os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=STILL_S)
    with closing(Ledger(path)) as ledger:
        tend(ledger, KEEP_EVENTS_S + 10, 2)
        assert ledger.events(0, 10) == []
        happen(ledger, KEEP_EVENTS_S + 10, 1)
        assert [event["rowid"] for event in ledger.events(0, 10)] == [4]


def test_the_log_is_written_back_in_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "EVERY_S", 0.0)
    with closing(Ledger(path)) as ledger:
        happen(ledger, 1.0, 100, "x" * 1000)
        before = path.stat().st_size
        ledger.maintain(1.0)
        assert ledger._checkpoints._last is not None
        ledger._checkpoints._last.result(30)
        assert path.stat().st_size > before + 100_000
        happen(ledger, 2.0, 1)
        assert len(ledger.events(0, 1000)) == 101
