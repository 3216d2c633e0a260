"""History: what the counters counted is in it once, whatever happens to the daemon, its clock and its disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftd.base.errors import LedgerError
from bftd.config.keys import Config
from bftd.core.model.delays import TouchedStart
from bftd.core.model.events import Finished, PoolObserved, Registered, Tick
from bftd.core.sampling import NODE_STATES, sample
from bftd.ledger.file import Ledger
from bftd.ledger.history import query as history_reading
from bftd.ledger.history import recorder
from bftd.ledger.history import table as history_table
from bftd.ledger.history.query import HIDDEN, HistoryRequest, TooMuch, read, with_present
from bftd.ledger.history.table import COARSE_S, FINE_S, KEEP_S, PoolRecord, TrainerIdentity, TrainerRecord
from bftd.ledger.reader import LedgerReader
from bftd.protocol.reports import ProgressReport
from bftd.service.service import Service
from tests.bftd.builders import lease, registration, reported
from tests.bftd.ledger.test_file import Clock, see, start
from tests.bftd.service.test_clock import Host
from tests.support.messages import pattern

ALL = HistoryRequest(0.0, 1e9, 1e9, 86_400.0)
SUMS = ("pool_node_seconds", "used_node_seconds", "training_node_seconds")


def begun(path: Path, clock: Clock) -> Service:
    """A service with a trainer that works on n2 and n3 of three nodes, and makes ten samples a second."""
    service = start(path, clock)
    service.apply(Registered(clock.now, registration("1", nodes_max=2)))
    see(service, clock, "n1 n2 n3")
    see(service, clock, "n1 n2 n3")
    for item in service.state.leases.values():
        placed = lease(item.id, "placed", job_id=f"7{item.node[1]}")
        service.apply(reported(clock.now, "1", placed, lease(item.id, "working")))
    go_on(service, clock, 1)
    return service


def go_on(service: Service, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        samples = service.state.trainers["1"].samples + 10.0
        report = ProgressReport(clock.now, step=int(samples), samples=samples, samples_per_s=10.0, nodes=2)
        service.apply(reported(clock.now, "1", report))
        see(service, clock, "n1 n2 n3", n2="72", n3="73")


def sums(path: Path) -> tuple[float, ...]:
    """Node-seconds of the pool, used and trained, in all records."""
    points = read(LedgerReader(path), ALL)["points"]
    return tuple(sum(point[name] for point in points) for name in SUMS)


def counted(service: Service) -> tuple[float, ...]:
    return tuple(getattr(service.state.usage, name) for name in SUMS)


def rows(path: Path, query: str) -> list[tuple[float, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def test_a_record_a_minute_says_what_nodes_and_trainers_did(path: Path) -> None:
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 300)
    service.stop()
    told = read(LedgerReader(path), HistoryRequest(1020.0, clock.now, clock.now, 120.0))
    first = told["points"][0]
    assert (told["format"], told["step_s"], len(told["points"])) == (1, 120, 3)
    assert (first["at_s"], first["covered_s"]) == (960, 80)
    assert [point["covered_s"] for point in told["points"][1:]] == [120, 103]
    whole = told["points"][1]
    assert whole["nodes"] == {"regular": 0, "planned": 0, "leased": 2, "idle": 1, "away": 0}
    assert (whole["pool_node_seconds"], whole["held_node_seconds"]) == (360.0, 240.0)
    assert whole["trainers"]["1"] == {
        "working": 2, "leased": 2, "samples_per_s": 10, "step": 1980, "samples": 1980,
    }  # fmt: skip
    assert whole["running"] == 1
    assert told["trainers"] == {"1": {"name": "train-1", "user": "ann"}}
    service.ledger.close()


def test_in_the_first_minute_windows_and_charts_have_what_was_counted_until_now(path: Path) -> None:
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 25)
    service.history.settle()
    assert sums(path) != counted(service), "the last record is older"
    for window in service.windows():
        assert (window.pool_node_seconds, window.held_node_seconds, window.training_node_seconds) == counted(service)
    asked = HistoryRequest(0.0, clock.now, clock.now, 3600.0)
    assert service.history.sample is not None
    now, users = sample(service.state), {"1": ("train-1", "ann")}
    told = with_present(read(LedgerReader(path), asked), service.history.sample, now, users, asked)
    assert tuple(sum(point[name] for point in told["points"]) for name in SUMS) == pytest.approx(counted(service))
    (point,) = told["points"]
    assert sum(point["mean_nodes"].values()) == pytest.approx(3, abs=0.01)
    assert 1.5 < point["trainers"]["1"]["working"] <= point["mean_nodes"]["leased"] <= 2
    hidden = HistoryRequest(0.0, clock.now, clock.now, 3600.0, sees=lambda _: False)
    told = with_present(read(LedgerReader(path), hidden), service.history.sample, now, users, hidden)
    assert told["trainers"] == {HIDDEN: {"name": HIDDEN, "user": ""}}
    assert set(told["points"][0]["trainers"]) == {HIDDEN}
    service.stop()
    service.ledger.close()


@given(st.lists(st.floats(0, 100), min_size=5, max_size=5))
def test_nodes_are_rounded_so_that_they_add_up_to_all(means: list[float]) -> None:
    found = history_reading._rounded(dict(zip(NODE_STATES, means, strict=True)))
    assert sum(found.values()) == round(sum(means))
    assert all(abs(number - mean) <= 1 for number, mean in zip(found.values(), means, strict=True))


def test_S10_what_is_in_history_is_what_was_counted_also_over_a_restart_in_a_minute_and_hours_without_a_daemon(
    path: Path,
) -> None:
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 95)
    service.ledger.close()  # as after a kill: nothing was noted at the end
    service = start(path, clock)
    go_on(service, clock, 1)
    service.history.settle()
    assert service.windows()[0].held_node_seconds > 0, "as of the last record before the start"
    go_on(service, clock, 39)
    assert rows(path, "SELECT count(*), sum(gained) FROM history")[0][0] < 6
    service.stop()
    service.ledger.close()
    before = rows(path, "SELECT max(at_s) FROM history")[0][0]
    clock.now += 5 * 3600.0
    service = start(path, clock)
    go_on(service, clock, 130)
    service.stop()
    assert sums(path) == pytest.approx(counted(service))
    assert rows(path, "SELECT total(gained) FROM history") == [(pytest.approx(service.state.trainers["1"].samples),)]
    told = read(LedgerReader(path), HistoryRequest(0.0, clock.now, clock.now, 600.0))
    assert not [point for point in told["points"] if before < point["at_s"] < clock.now - 800], "a gap is a gap"
    spans = rows(path, f"SELECT sum(span_s) FROM history WHERE at_s > {before}")[0][0]
    assert spans <= 132, "nobody says what was while no daemon ran"
    service.ledger.close()


def test_what_a_trainer_had_made_elsewhere_is_not_made_here(path: Path) -> None:
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 60)
    service.apply(Registered(clock.now, registration("2", nodes_max=1)))
    go_on(service, clock, 60)
    saved = ProgressReport(clock.now, step=10**6, samples=1e6, samples_per_s=5.0, nodes=1)
    service.apply(reported(clock.now, "2", saved))
    go_on(service, clock, 60)
    service.apply(Finished(clock.now, "2", 0, ""))
    service.stop()
    gained = dict(
        rows(path, "SELECT id, sum(gained) FROM history_points JOIN history_trainers ON key = trainer GROUP BY 1")
    )
    assert gained["1"] == service.state.trainers["1"].samples
    assert gained["2"] <= 5.0 * 120
    service.ledger.close()


def test_a_clock_that_is_set_back_leaves_nothing_ahead_of_it_and_loses_no_node_seconds_that_come(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    host.train("1")
    for _ in range(40):
        host.poll(after_s=10.0)
    for by_s in (-90.0, 7200.0, -7200.0):
        host.wall_s += by_s
        for _ in range(40):
            host.poll(after_s=10.0)
    host.service.stop()
    path = host.service.ledger.path
    times = [row[0] for row in rows(path, "SELECT at_s FROM history")]
    assert max(times) <= host.wall_s
    assert not rows(path, "SELECT at_s FROM history_points WHERE at_s NOT IN (SELECT at_s FROM history)")
    known_s = sum(row[0] for row in rows(path, "SELECT span_s FROM history"))
    assert 1000 <= known_s <= 4 * 400
    host.service.ledger.close()


def test_while_the_ledger_cannot_be_written_records_are_owed_and_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "OWED_MOST", 4)
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 60)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        monkeypatch.setattr("bftd.service.service.RETRY_S", 10_000.0)
        other.execute("BEGIN IMMEDIATE")
        go_on(service, clock, 1000)
        assert len(service.history._owed) <= 4
        other.execute("ROLLBACK")
    clock.now += 10_000
    service.apply(Tick(clock.now))
    go_on(service, clock, 60)
    service.stop()
    assert service.history._owed == []
    assert sums(path) == pytest.approx(counted(service))
    assert rows(path, "SELECT total(gained) FROM history") == [(pytest.approx(service.state.trainers["1"].samples),)]
    service.ledger.close()


def test_nothing_is_noted_before_the_pool_was_seen(path: Path) -> None:
    clock = Clock()
    service = start(path, clock)
    clock.now += 120
    service.apply(Tick(clock.now))
    service.stop()
    assert rows(path, "SELECT * FROM history") == []
    assert service.history.sample is None
    service.ledger.close()


# A month by hand: records at odd times, as restarts make them.


def record(at_s: int, span_s: int, level: float, trainers: int = 2) -> PoolRecord:
    nodes = {"regular": level, "planned": 0.0, "leased": 2 * level, "idle": 1.0, "away": 0.0}
    points = tuple(
        TrainerRecord(str(item), level, level, 3.0 * level, at_s, float(at_s), 5.0, 1.0) for item in range(trainers)
    )
    return PoolRecord(at_s, span_s, nodes, level * span_s, 0.5 * level * span_s, 0.25 * level * span_s, points)


def named(count: int = 2) -> list[TrainerIdentity]:
    return [TrainerIdentity(str(item), f"train-{item}", "ann" if item else "bob", {}) for item in range(count)]


def totals(ledger: Ledger) -> list[float]:
    """What every sum over history is made of: node-seconds, node states and sizes times their seconds, samples."""

    def work(db: sqlite3.Connection) -> list[float]:
        query = (
            "SELECT total(pool_s), total(used_s), total(training_s), total(gained), total(span_s), "
            "total(leased * span_s), total(regular * span_s), total(running * span_s) FROM history"
        )
        mine = (
            "SELECT total(working * span_s), total(rate * span_s), total(history_points.gained), "
            "total(present * span_s) FROM history_points JOIN history USING (at_s)"
        )
        return [*db.execute(query).fetchone(), *db.execute(mine).fetchone()]

    return ledger.read(work)


def tidied(ledger: Ledger, now_s: float, most: int = 10**9) -> None:
    while ledger.write(lambda db: history_table.tidy(db, now_s, most)):
        pass


spans = st.lists(
    st.tuples(st.integers(1, 180), st.sampled_from([0, 0, 7, 4000]), st.floats(0.0, 100.0), st.integers(0, 2)),
    max_size=40,
)


@given(made=spans, aged_s=st.sampled_from([0, FINE_S, FINE_S + 2000, 3 * FINE_S]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_thinning_changes_no_sum_and_no_window_by_more_than_one_record(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, int, float, int]], aged_s: int
) -> None:
    with closing(Ledger(tmp_path_factory.mktemp("thin") / "ledger")) as ledger:
        at_s, records = 1_000_000, []
        for span_s, gap_s, level, trainers in made:
            at_s += span_s + gap_s
            records.append(record(at_s, span_s, level, trainers))
        if records:
            ledger.write(lambda db: history_table.add(db, records, named()))
        before = totals(ledger)
        edge_s = at_s - 7200
        window = sum(item.pool_s for item in records if item.at_s > edge_s)
        tidied(ledger, at_s + aged_s)
        assert totals(ledger) == pytest.approx(before)
        (left,) = ledger.read(
            lambda db: db.execute("SELECT total(pool_s) FROM history WHERE at_s > ?", (edge_s,)).fetchone()
        )
        within = [item.pool_s for item in records if abs(item.at_s - edge_s) <= COARSE_S]
        assert abs(left - window) <= sum(within) + 1e-6
        (fine,) = ledger.read(
            lambda db: db.execute(
                "SELECT count(*) FROM history WHERE NOT coarse AND at_s < ?", (at_s + aged_s - FINE_S - COARSE_S,)
            ).fetchone()
        )
        assert fine == 0


@given(made=spans, step_s=st.sampled_from([60, 300, 3600, 86_400]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_means_of_steps_of_any_length_have_the_same_node_seconds(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, int, float, int]], step_s: int
) -> None:
    path = tmp_path_factory.mktemp("steps") / "ledger"
    with closing(Ledger(path)) as ledger:
        at_s, records = 1_000_000, []
        for span_s, gap_s, level, trainers in made:
            at_s += span_s + gap_s
            records.append(record(at_s, span_s, level, trainers))
        if records:
            ledger.write(lambda db: history_table.add(db, records, named()))
        told = read(LedgerReader(path), HistoryRequest(at_s - 80_000.0, at_s, at_s, float(step_s)))
    first_s = (at_s - 80_000) // told["step_s"] * told["step_s"]
    mine = [item for item in records if item.at_s - item.span_s // 2 >= first_s]
    points = told["points"]
    assert [point["at_s"] for point in points] == sorted({point["at_s"] for point in points})
    for place, name in enumerate(SUMS):
        part = (1.0, 0.5, 0.25)[place]
        assert sum(point[name] for point in points) == pytest.approx(part * sum(item.pool_s for item in mine))
    worked = sum(point["covered_s"] * mean["working"] for point in points for mean in point["trainers"].values())
    assert worked == pytest.approx(sum(item.pool_s * len(item.points) for item in mine), abs=0.002 * step_s * 60)


def month(ledger: Ledger, trainers: int, minutes: Iterator[int]) -> None:
    for minute in minutes:
        ledger.write(
            lambda db, minute=minute: history_table.add(db, [record(minute * 60, 60, 1.0, trainers)], named(trainers))
        )


def test_records_and_trainers_expire_and_there_are_never_too_many(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 3, iter(range(1, 200)))
        end_s = 200 * 60.0
        tidied(ledger, end_s, most=150)
        (count, first_s) = rows(path, "SELECT sum(points + 1), min(at_s) FROM history")[0]
        assert 100 <= count <= 150
        assert first_s > end_s - 3600, "the oldest go first"
        tidied(ledger, end_s + KEEP_S + 2 * 3600)
        for table in ("history", "history_points", "history_trainers"):
            assert rows(path, f"SELECT * FROM {table}") == []


def test_a_trainer_that_waits_for_longer_than_history_is_kept_keeps_its_name(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 2, iter(range(1, 3)))
        now_s = int(KEEP_S) + 3 * 3600
        ledger.write(lambda db: history_table.add(db, [record(now_s, 60, 1.0, 2)], ()))  # nothing is new of them
        tidied(ledger, now_s)
    told = read(LedgerReader(path), HistoryRequest(0.0, now_s, now_s, 86_400.0))
    assert [known["name"] for known in told["trainers"].values()] == ["train-0", "train-1"]


def test_a_record_whose_trainer_has_lost_its_name_is_told_all_the_same(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 2, iter(range(1, 3)))
        ledger.write(lambda db: db.execute("DELETE FROM history_trainers"))
    told = read(LedgerReader(path), HistoryRequest(0.0, 600.0, 600.0, 600.0))
    assert told["points"][0]["trainers"][history_reading.HIDDEN]["working"] == 2


def test_a_small_ledger_keeps_a_shorter_history(tmp_path: Path) -> None:
    assert history_table.points_most(10**9) == history_table.ROWS_MOST
    with closing(Ledger(tmp_path / "small", max_bytes=240_000)) as ledger:
        clock = Clock()
        service = Service(Config(), ledger, lambda job_ids: None, clock)
        month(ledger, 9, iter(range(1, 200)))
        clock.now = 200 * 60.0
        for _ in range(200):
            clock.now += 1.1
            service.apply(Tick(clock.now))
        (kept,) = rows(ledger.path, "SELECT sum(points + 1) FROM history")[0]
        assert 850 <= kept <= 1000


def test_one_step_of_upkeep_is_small(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 2, iter(range(1, 120)))
        for now_s in (0.0, 1e9):
            before = rows(path, "SELECT count(*) FROM history")[0][0]
            assert ledger.write(lambda db, now_s=now_s: history_table.tidy(db, now_s, 10**9))
            assert 0 < before - rows(path, "SELECT count(*) FROM history")[0][0] <= 10


def test_of_others_who_may_not_be_known_only_the_sum_is_told(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 4, iter(range(1, 10)))
    told = read(LedgerReader(path), HistoryRequest(0.0, 600.0, 600.0, 600.0, sees=lambda user: user == "bob"))
    assert told["trainers"] == {
        "0": {"name": "train-0", "user": "bob"}, history_reading.HIDDEN: {"name": history_reading.HIDDEN, "user": ""},
    }  # fmt: skip
    (point,) = told["points"]
    assert point["trainers"][history_reading.HIDDEN] == {
        "working": 3, "leased": 3, "samples_per_s": 9, "step": 0, "samples": 0,
    }  # fmt: skip
    assert "'ann'" not in str(told)
    assert "train-1" not in str(told)


def test_a_step_is_chosen_that_fits_and_more_than_an_answer_holds_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(path)) as ledger:
        month(ledger, 2, iter(range(1, 200)))
    now_s = 40 * 86_400.0

    def step(length_s: float, asked_s: float | None = None) -> int:
        return int(read(LedgerReader(path), HistoryRequest(now_s - length_s, now_s, now_s, asked_s))["step_s"])

    assert [step(length_s) for length_s in (3600.0, 86_400.0, 7 * 86_400.0, 30 * 86_400.0)] == [60, 300, 3600, 21_600]
    assert step(3600.0, 1.0) == 60, "nothing finer is kept"
    assert step(2 * 86_400.0, 300.0) == COARSE_S, "nor of older times"
    with pytest.raises(TooMuch, match=pattern("service.history_reading.too_many_points")):
        step(30 * 86_400.0, 600.0)
    monkeypatch.setattr(history_reading, "TRAINERS_MOST", 100)
    with pytest.raises(TooMuch, match="trainers=0"):
        read(LedgerReader(path), HistoryRequest(0.0, 12_000.0, 12_000.0, 60.0))
    assert len(read(LedgerReader(path), HistoryRequest(0.0, 12_000.0, 12_000.0, 60.0, trainers=False))["points"]) == 199


def test_a_ledger_that_cannot_be_read_is_told_in_one_line(path: Path) -> None:
    with pytest.raises(
        LedgerError, match="^" + pattern("service.reader.unreadable", error="unable to open database file") + "$"
    ):
        read(LedgerReader(path), ALL)


def test_the_starts_that_pilots_touched_are_in_history_and_what_they_spent_survives_a_restart(path: Path) -> None:
    clock = Clock()
    service = begun(path, clock)
    go_on(service, clock, 30)
    clock.now += 1
    view = replace(service.state.pool, time_s=clock.now, touched=(TouchedStart("9", ("n3",), 1000.0, 1007.0),))
    service.apply(PoolObserved(clock.now, view))
    go_on(service, clock, 90)
    service.stop()
    points = read(LedgerReader(path), HistoryRequest(1000.0, clock.now, clock.now, 60.0))["points"]
    assert sum(point["regular_starts"] for point in points) == 1
    assert sum(point["regular_delay_seconds"] for point in points) == 7.0
    before = service.state.delays
    service.ledger.close()
    service = start(path, clock)
    assert service.state.delays == before
    assert service.state.delays.counted_s(clock.now) == 6.0
    service.ledger.close()
