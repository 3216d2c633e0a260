"""A ledger that cannot be written: the daemon says so once, grows nothing, and loses nothing when it can again."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bftd.base.errors import LedgerError
from bftd.core.model.domain import Happened, State
from bftd.core.model.events import Registered
from bftd.ledger import file as ledgers
from bftd.ledger.file import Ledger
from bftd.ledger.history import quota
from bftd.ledger.usage import UsageRequest, read
from bftd.protocol.reports import NoteReport, ProgressReport
from bftd.service.service import RETRY_S, Service
from tests.bftd.builders import lease, registration, reported
from tests.bftd.ledger.test_file import Clock, see, start
from tests.support.messages import fragment, pattern, says, wording
from tests.support.waiting import STILL_S


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(where)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is free."""
    file = disk / "filler"
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            return file


def working(path: Path, clock: Clock) -> Service:
    """A service with a trainer that works on n1, the only node."""
    service = start(path, clock)
    service.apply(Registered(clock.now, registration("1", nodes_max=1)))
    see(service, clock, "n1")
    see(service, clock, "n1")
    (only,) = service.state.leases.values()
    service.apply(reported(clock.now, "1", lease(only.id, "placed", job_id="71"), lease(only.id, "working")))
    see(service, clock, "n1", n1="71")
    return service


def test_regression_a_full_disk_grows_nothing_loses_nothing_and_ends_nothing(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, path = Clock(), disk / "ledger"
    service = working(path, clock)
    clock.now += 1
    service.apply(Registered(clock.now, registration("2", nodes_max=1, nodes_min=1, user="bob")))
    filler = fill(disk)
    for step in range(60):  # until nothing more fits into the log that there is
        clock.now += 0.01
        service.apply(reported(clock.now, "1", ProgressReport(clock.now, step=step, samples=1.0)))
        service._note(Happened("note", "1", None, {"text": "x" * 500}))
    told = [record.message for record in caplog.records if "cannot be written" in record.message]
    assert told == [
        wording("service.ledger.unwritable", path=path, error="database or disk is full", error2="")
        + wording("service.ledger.advice")
        + wording("service.live.nothing_grows", error="")
    ]
    # n2 is free now and bob's trainer wants it; what runs runs on
    for _ in range(5):
        see(service, clock, "n1 n2", n1="71")
    assert {item.trainer for item in service.state.leases.values()} == {"1"}
    assert service.state.pool.hold == wording("service.live.cannot_write")
    assert "cannot be written" in service.overview("0")["ledger"]["failure"]
    with pytest.raises(LedgerError, match="free space"):  # a new number of a driver must survive the daemon
        service.apply(Registered(clock.now, registration("3")))
    assert set(service.state.trainers) == {"1", "2"}
    # a regular job gets n1 back
    clock.now += 1
    see(service, clock, "n2")
    see(service, clock, "n2")
    used_s = service.state.usage.used_node_seconds
    assert service.state.leases == {}
    # there is space again: all of it is written, and growth goes on
    filler.unlink()
    clock.now += RETRY_S
    see(service, clock, "n2")
    see(service, clock, "n2")
    assert [item.node for item in service.state.leases.values()] == ["n2"]
    assert says(caplog.text, "service.live.written_again")
    after = service.state
    service.ledger.close()
    again = start(path, clock)
    assert again.state.trainers.keys() == after.trainers.keys()
    assert again.state.leases.keys() == after.leases.keys()
    assert (again.state.usage, again.state.sequence) == (after.usage, after.sequence)
    kinds = {event["kind"] for event in again.ledger.events(0, 10_000)}
    assert {"note", "progress", "revoked", "ended"} <= kinds
    (row,) = read(path, UsageRequest(0.0, clock.now, ("user",)))["usage"]
    assert row["used_node_seconds"] == pytest.approx(used_s)
    again.ledger.close()


def test_a_daemon_starts_while_the_disk_is_full_and_takes_nothing_back(disk: Path) -> None:
    clock, path = Clock(), disk / "ledger"
    kept = working(path, clock)
    # a daemon that was killed has left its log and shared memory beside the ledger
    for name in ("", "-wal", "-shm"):
        shutil.copy(f"{path}{name}", f"{path}.killed{name}")
    kept.ledger.close()
    fill(disk)
    service = start(disk / "ledger.killed", clock)
    for _ in range(3):
        see(service, clock, "n1 n2", n1="71")
    assert [(item.trainer, item.live) for item in service.state.leases.values()] == [("1", True)]
    service.ledger.close()


def test_a_daemon_that_cannot_begin_its_log_on_a_full_disk_says_so_in_one_line(disk: Path) -> None:
    path = disk / "ledger"
    Ledger(path).close()
    fill(disk)
    told = pattern("service.ledger.cannot_use", path=path, error="ERROR", advice=wording("service.ledger.advice"))
    with pytest.raises(LedgerError, match=f"^{told}$".replace("ERROR", ".*")):
        Ledger(path)


@pytest.mark.slow
def test_what_happens_at_once_while_nothing_can_be_written_is_kept_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "_BUSY_S", 0.01)
    clock = Clock()
    with closing(Ledger(tmp_path / "ledger")) as ledger, closing(sqlite3.connect(tmp_path / "ledger")) as other:
        other.execute("BEGIN IMMEDIATE")
        advice = wording("service.ledger.end_other")
        told = pattern("service.ledger.unwritable", error=fragment("locked"), error2=advice)
        for step in range(30):
            actions = [Happened("note", "1", None, {"step": step})] * 500
            with pytest.raises(LedgerError, match=told):
                ledger.save(State(), State(time_s=clock.now), actions)
            ledger.owe(State(), State(time_s=clock.now), actions)
        other.execute("ROLLBACK")
        ledger.save(State(), State(time_s=clock.now), [])
        events = ledger.events(0, 100_000)
    assert len(events) == 10_000
    assert (events[0]["data"], events[-1]["data"]) == ({"step": 10}, {"step": 29})


def test_a_ledger_that_cannot_be_written_is_tried_again_every_few_seconds_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    service = working(tmp_path / "ledger", clock)
    tries = []

    def locked(*_: object) -> None:
        tries.append(clock.now)
        raise LedgerError("it is locked")

    monkeypatch.setattr(service.ledger, "save", locked)
    begun_s = clock.now
    for second in range(20):
        clock.now = begun_s + second
        for _ in range(10):
            service.apply(reported(clock.now, "1", ProgressReport(clock.now, step=second, samples=1.0)))
    assert tries == [begun_s, begun_s + 5, begun_s + 10, begun_s + 15]
    clock.now = begun_s - 3600  # a clock that went back is no reason to wait
    service.apply(reported(clock.now, "1", ProgressReport(clock.now, step=30, samples=1.0)))
    assert len(tries) == 5
    service.ledger.close()


class _FailsToCommit:
    """A connection whose next COMMIT fails, as on a disk that has just become full."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real
        self.fails = True

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.fails:
            self.fails = False
            raise sqlite3.OperationalError("disk I/O error")
        return self._real.execute(sql, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_regression_a_commit_that_fails_is_rolled_back_and_the_ledger_goes_on(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        ledger._db = _FailsToCommit(ledger._db)  # type: ignore[assignment]
        with pytest.raises(LedgerError, match="disk I/O error"):
            ledger.save(State(), State(time_s=1.0), [Happened("note", "1")])
        assert not ledger._db.in_transaction
        assert ledger.events(0, 10) == []
        ledger.save(State(), State(time_s=2.0), [Happened("note", "2")])
        assert [event["trainer"] for event in ledger.events(0, 10)] == ["2"]


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_told_as_a_full_disk_is(tmp_path: Path) -> None:
    """As `LimitFSIZE=` sets it: the write fails with EFBIG, and nothing tears."""
    code = (
        "import resource, sys; from bftd.core.model.domain import Happened, State;"
        "from bftd.base.errors import LedgerError;"
        "from bftd.ledger.file import Ledger; ledger = Ledger(sys.argv[1]);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try:\n"
        "    for _ in range(1000):\n"
        "        ledger.save(State(), State(time_s=1.0), [Happened('note', '1', None, {'a': 'x' * 500})])\n"
        "except LedgerError as error: print(error)\n"
        "print(len(ledger.events(0, 10_000)) > 50)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ledger")], capture_output=True, text=True, timeout=STILL_S
    )
    assert run.stdout.splitlines()[-1:] == ["True"], run.stderr
    assert "cannot be written" in run.stdout
    Ledger(tmp_path / "ledger").close()


def test_regression_who_wrote_first_after_a_full_disk_paid_for_the_history_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    service = start(tmp_path / "ledger", clock)
    for id_, user in (("1", "ann"), ("2", "bob")):
        service.apply(Registered(clock.now, registration(id_, user=user)))
    monkeypatch.setattr(quota, "BYTES_A_DAY", 5_000)

    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(service.ledger, "save", full)
        for number in range(60):
            service.apply(reported(clock.now, "2", NoteReport(clock.now, f"{number} {'x' * 100}")))
    clock.now += RETRY_S
    for id_ in ("1", "2", "1", "2"):
        service.apply(reported(clock.now, id_, NoteReport(clock.now, "y")))
    notes = [event for event in service.ledger.events(0, 1000) if event["kind"] == "note"]
    assert sum(event["trainer"] == "1" for event in notes) == 2, "ann told next to nothing"
    assert 0 < sum(event["trainer"] == "2" for event in notes) < 20, "a full disk gives nobody a larger share"
