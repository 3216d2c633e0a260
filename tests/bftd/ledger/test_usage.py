"""Usage by hour, user and account: counted once, never lost, kept beside the events."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import LedgerError
from bftd.core.model.domain import Charged, State, UsageShare
from bftd.core.model.events import Registered
from bftd.ledger import usage
from bftd.ledger.file import Ledger
from bftd.ledger.retention import KEEP_EVENTS_S
from bftd.ledger.usage import UsageRequest, read
from tests.bftd.builders import lease, registration, reported
from tests.bftd.ledger.test_file import Clock, see, start
from tests.support.messages import pattern
from tests.support.waiting import STILL_S

DAY_S = 86400.0
ROOT = Path(__file__).parents[3]


def charge(ledger: Ledger, at_s: float, *shares: UsageShare) -> None:
    ledger.save(State(), State(time_s=at_s), [Charged(shares)])


def found(path: Path, since_s: float, until_s: float, *by: str, user: str | None = None) -> list[tuple[Any, ...]]:
    rows = read(path, UsageRequest(since_s, until_s, by, user))["usage"]
    return [tuple(value for name, value in row.items() if name != "used_node_seconds") for row in rows]


def test_usage_is_summed_up_by_user_by_account_and_by_both(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        charge(ledger, 7200.0, UsageShare("ann", "phys", 10.0, 8.0, 1.0), UsageShare("bob", "chem", 5.0, 5.0, 0.0))
        charge(ledger, 7201.0, UsageShare("ann", "chem", 1.0, 0.5, 0.0))
        charge(ledger, 3 * 3600.0, UsageShare("ann", "phys", 2.0, 2.0, 0.0))
    assert found(path, 0.0, 1e6, "user") == [("ann", 13.0, 10.5, 1.0), ("bob", 5.0, 5.0, 0.0)]
    assert found(path, 0.0, 1e6, "account") == [("phys", 12.0, 10.0, 1.0), ("chem", 6.0, 5.5, 0.0)]
    assert found(path, 0.0, 1e6, "account", "user") == [
        ("ann", "phys", 12.0, 10.0, 1.0), ("bob", "chem", 5.0, 5.0, 0.0), ("ann", "chem", 1.0, 0.5, 0.0),
    ]  # fmt: skip
    assert found(path, 0.0, 1e6, "user", user="bob") == [("bob", 5.0, 5.0, 0.0)]


def test_a_time_within_an_hour_is_taken_as_its_beginning(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        charge(ledger, 7300.0, UsageShare("ann", "", 1.0, 0.0, 0.0))
        charge(ledger, 11_000.0, UsageShare("ann", "", 2.0, 0.0, 0.0))
    assert found(path, 7_500.0, 10_800.0, "user") == [("ann", 1.0, 0.0, 0.0)]
    assert read(path, UsageRequest(7_500.0, 1e6, ("user",)))["since_s"] == 7200.0
    assert read(path, UsageRequest(9e5, 1e6, ("user",))) == {
        "since_s": 9e5,
        "until_s": 1e6,
        "first_s": 7200,
        "usage": [],
    }


def test_usage_is_kept_when_its_events_are_gone_and_forgotten_after_400_days(path: Path) -> None:
    with closing(Ledger(path, max_bytes=1)) as ledger:
        charge(ledger, 0.0, UsageShare("ann", "", 1.0, 0.0, 0.0))
        charge(ledger, 100 * DAY_S, UsageShare("ann", "", 2.0, 0.0, 0.0))
        ledger.maintain(KEEP_EVENTS_S + 1)
        assert found(path, 0.0, 1e9, "user") == [("ann", 3.0, 0.0, 0.0)]
        ledger.maintain(401 * DAY_S)
    assert found(path, 0.0, 1e9, "user") == [("ann", 2.0, 0.0, 0.0)]


def test_S10_what_users_are_charged_is_what_was_counted_also_after_restarts(path: Path) -> None:
    clock = Clock()
    for first in (True, False):
        service = start(path, clock)
        if first:
            service.apply(Registered(clock.now, registration("1", nodes_max=2)))
            service.apply(Registered(clock.now, registration("2", nodes_max=1, user="bob")))
            see(service, clock, "n1 n2 n3")
            see(service, clock, "n1 n2 n3")
            for item in service.state.leases.values():
                service.apply(reported(clock.now, item.trainer, lease(item.id, "placed", job_id=f"7{item.node[1]}")))
        for _ in range(10):
            see(service, clock, "n1 n2 n3", n1="71", n2="72", n3="73")
        clock.now += 1000  # nobody looked
        see(service, clock, "n1 n2 n3", n1="71", n2="72", n3="73")
        service.ledger.close()
    rows = {row[0]: row[1] for row in found(path, 0.0, clock.now, "user")}
    assert rows["ann"] == 2 * rows["bob"] > 0
    assert sum(rows.values()) == pytest.approx(service.state.usage.used_node_seconds)


@pytest.mark.slow
def test_S10_what_users_are_charged_is_what_was_counted_also_after_a_kill(path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from bftd.core.model.events import Registered
from tests.bftd.builders import lease, registration, reported
from tests.bftd.ledger.test_file import Clock, see, start
clock = Clock()
service = start(Path(sys.argv[1]), clock)
service.apply(Registered(clock.now, registration("1", nodes_max=1)))
see(service, clock, "n1"); see(service, clock, "n1")
(only,) = service.state.leases.values()
service.apply(reported(clock.now, "1", lease(only.id, "placed", job_id="71")))
for _ in range(25):
    see(service, clock, "n1", n1="71")
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, env=os.environ, timeout=STILL_S)
    assert run.returncode == -9
    with closing(Ledger(path)) as ledger:
        counted_s = ledger.load(0.0).usage.used_node_seconds
    assert counted_s == 24.0
    assert found(path, 0.0, 1e6, "user") == [("ann", 24.0, 0.0, 0.0)]


def test_a_ledger_that_cannot_be_read_is_told_in_one_line(path: Path) -> None:
    with pytest.raises(
        LedgerError, match="^" + pattern("service.reader.unreadable", error="unable to open database file") + "$"
    ):
        read(path, UsageRequest(0.0, 1.0, ("user",)))


@pytest.mark.slow
def test_a_year_of_hours_of_a_hundred_users_is_read_quickly_and_is_no_large_part_of_a_ledger(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        rows = ((hour * 3600, f"user{user}", "account", 1.0, 1.0, 0.0) for hour in range(9_600) for user in range(20))
        with ledger._transaction():
            ledger._db.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?)", rows)
    assert path.stat().st_size < 20_000_000
    assert found(path, 0.0, 1e9, "account") == [("account", 192_000.0, 192_000.0, 0.0)]
    with closing(sqlite3.connect(path)) as database:
        plan = database.execute("EXPLAIN QUERY PLAN SELECT min(hour_s) FROM usage").fetchall()
        plan += database.execute("EXPLAIN QUERY PLAN SELECT sum(used_s) FROM usage WHERE hour_s >= 7").fetchall()
    assert all("SEARCH" in row[3] for row in plan), plan
    assert usage.KEEP_S == 400 * DAY_S
