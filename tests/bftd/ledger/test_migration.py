"""Ledgers of older versions: files that they wrote, and large ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bftd.base.errors import LedgerError
from bftd.core.invariants import validate_state
from bftd.ledger import migration, schema, usage
from bftd.ledger.file import Ledger
from bftd.ledger.retention import KEEP_EVENTS_S
from tests.bftd.ledger.test_file import Clock, see, start
from tests.support.messages import pattern, wording

ASSETS = Path(__file__).parent / "assets"
DAY_S = 86400.0


def written(path: Path, version: int) -> None:
    """A ledger as the bftd of that schema wrote it, with its log beside it as a kill leaves it."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript((ASSETS / f"ledger-{version}.sql").read_text())


def pragma(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(f"PRAGMA {name}").fetchone()[0])


def test_there_is_a_file_of_every_schema_that_was_ever_released() -> None:
    assert sorted(ASSETS.glob("ledger-*.sql")) == [ASSETS / f"ledger-{old}.sql" for old in range(1, schema.VERSION)]


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_a_ledger_of_an_older_schema_becomes_one_of_this_that_shrinks(path: Path, version: int) -> None:
    written(path, version)
    Ledger(path).close()
    assert pragma(path, "user_version") == schema.VERSION
    assert pragma(path, "auto_vacuum") == 2
    assert {file.name for file in path.parent.iterdir()} == {"ledger", "ledger.lock"}
    with closing(sqlite3.connect(path)) as database, closing(sqlite3.connect(":memory:")) as new:
        new.executescript(schema.TABLES + schema.INDICES)
        described = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
        assert database.execute(described).fetchall() == new.execute(described).fetchall()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_ledger_of_the_second_schema_is_opened_with_all_that_it_holds(path: Path) -> None:
    written(path, 2)
    clock = Clock()
    clock.now = 2000.0
    service = start(path, clock)
    validate_state(service.state)
    trainers = service.state.trainers
    assert {id_: (item.user, item.state, item.step) for id_, item in trainers.items()} == {
        "17": ("ann", "running", 5), "18": ("bob", "running", 0), "19": ("bob", "finished", 0),
    }  # fmt: skip
    assert trainers["17"].request.curve == ((1, 10.0), (4, 30.0))
    assert {item.id: item.job_id for item in service.state.leases.values()} == {
        "n1.1": "71",
        "n2.2": "72",
        "n3.3": "73",
    }
    assert (service.state.sequence, service.state.usage.used_node_seconds) == (3, 15.0)
    assert set(service.state.failures) == {"n1"}
    assert service.state.settings.decide.pj_max == 7
    assert service.ledger.kept("shadow") == {"a": 1}
    assert any("starts on 2 nodes" in told["text"] for told in service.ledger.decisions("17", 50))
    events = service.ledger.events(0, 1000)
    assert [event["data"]["step"] for event in events if event["kind"] == "progress"] == [5]  # all within a minute
    see(service, clock, "n1 n2 n3", n1="71", n2="72", n3="73")
    assert all(item.live and item.observed for item in service.state.leases.values())
    # the numbers of events go on behind the last that the older bftd gave
    assert min(event["rowid"] for event in service.ledger.events(31, 1000)) == 32
    service.ledger.close()


def test_regression_usage_and_counters_of_the_third_schema_outlive_the_upgrade_and_history_begins_with_it(
    path: Path,
) -> None:
    written(path, 3)
    clock = Clock()
    clock.now = 7250.0
    service = start(path, clock)
    assert service.state.usage.used_node_seconds == 15.0
    told = usage.read(path, usage.UsageRequest(0.0, 1e9, ("user",)))["usage"]
    assert [(row["user"], row["used_node_seconds"]) for row in told] == [("ann", 10.0), ("bob", 5.0)]
    for _ in range(80):
        see(service, clock, "n1 n2 n3", n1="71", n2="72", n3="73")
    service.history.settle()
    # what the counters had counted before there was any history is none of it
    counted_s = service.state.usage.used_node_seconds - 15.0
    service.stop()
    service.history.settle()
    assert service.windows()[0].held_node_seconds == counted_s > 200.0
    service.ledger.close()


def grown(path: Path, rows: int, first_s: float, every_s: float) -> None:
    """An old ledger with so many more reports of progress, of ten trainers."""
    written(path, 2)
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO events (at_s, kind, trainer, data) VALUES (?, 'progress', ?, ?)",
            ((first_s + every_s * row, f"{row % 10}", f'{{"step": {row}}}') for row in range(rows)),
        )


@pytest.mark.slow
def test_of_a_large_ledger_the_month_is_kept_thinned_and_nothing_older(path: Path) -> None:
    grown(path, 50_000, first_s=10_000.0, every_s=100.0)
    working: list[None] = []
    with closing(Ledger(path, working=lambda: working.append(None))) as ledger:
        events = ledger.events(0, 100_000)
    last_s = 10_000.0 + 100.0 * 49_999
    assert events[0]["at_s"] == last_s - KEEP_EVENTS_S
    assert events[-1]["at_s"] == last_s
    assert events[-1]["rowid"] == 31 + 50_000
    assert len(events) == KEEP_EVENTS_S / 100.0 + 1
    assert working


def test_of_progress_of_each_second_one_row_a_minute_is_kept(path: Path) -> None:
    grown(path, 6_000, first_s=12_000.0, every_s=0.1)
    with closing(Ledger(path)) as ledger:
        kept = [event["data"]["step"] for event in ledger.events(31, 100_000)]
    assert kept == [step for step in range(6_000) if (step % 600) >= 590]


def test_only_the_newest_rows_are_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "MOST_EVENTS", 100)
    grown(path, 1_000, first_s=10_000.0, every_s=100.0)
    with closing(Ledger(path)) as ledger:
        assert [event["rowid"] for event in ledger.events(0, 10_000)] == list(range(932, 1032))


def test_regression_a_migration_that_fails_leaves_the_ledger_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def look() -> tuple[int, int]:
        with closing(sqlite3.connect(path)) as database:
            (events,) = database.execute("SELECT count(*) FROM events").fetchone()
        return pragma(path, "user_version"), events

    written(path, 2)
    before = look()
    for name in ("_copy", "_settle"):
        with monkeypatch.context() as broken:
            broken.setattr(migration, name, fails)
            told = pattern(
                "service.ledger.cannot_use", path=path, error="ERROR", advice=wording("service.ledger.advice")
            )
            with pytest.raises(LedgerError, match=f"^{told}".replace("ERROR", ".*full")):
                Ledger(path)
        assert look() == before
        assert not path.with_name("ledger.new").exists()
    path.with_name("ledger.new").write_text("what a kill left behind")
    Ledger(path).close()
    assert pragma(path, "user_version") == schema.VERSION


def test_a_ledger_that_somebody_reads_is_not_taken_from_under_him(path: Path) -> None:
    written(path, 2)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(LedgerError, match=r"open: end it|locked"):
            Ledger(path)
    Ledger(path).close()


def test_a_ledger_in_another_mode_is_refused_before_it_is_rewritten(path: Path) -> None:
    written(path, 2)
    with pytest.raises(LedgerError, match=pattern("service.ledger.other_mode", written="live", mode="shadow")):
        Ledger(path, "shadow")
    assert pragma(path, "user_version") == 2


def test_a_new_ledger_can_shrink(path: Path) -> None:
    Ledger(path).close()
    assert pragma(path, "auto_vacuum") == 2


def test_the_numbers_of_events_go_on_also_where_none_is_left(path: Path) -> None:
    written(path, 2)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM events")
    clock = Clock()
    service = start(path, clock)
    see(service, clock, "n1 n2 n3")
    assert service.ledger.events(0, 1)[0]["rowid"] == 32
    service.ledger.close()
