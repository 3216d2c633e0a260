"""The ledger: what survives the daemon."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bftd.base.errors import LedgerError
from bftd.config.keys import Config
from bftd.core.invariants import validate_state
from bftd.core.model.domain import State
from bftd.core.model.events import Finished, Heard, Registered
from bftd.ledger import filesystem
from bftd.ledger.file import Ledger
from bftd.protocol.registration import Held, Registration
from bftd.protocol.reports import CrashReport, ProgressReport, Summary
from bftd.protocol.sizes import Sizes
from bftd.service import service as live
from bftd.service.service import Service
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import lease, node, pilot, registration, reported, trainer
from tests.support.messages import pattern, wording
from tests.support.waiting import STILL_S

FIRST_SCHEMA = Path(__file__).parent / "assets" / "ledger-1.sql"


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def start(path: Path, clock: Clock) -> Service:
    """A service on a ledger, as after a start of the daemon."""
    return Service(Config(), Ledger(path), lambda job_ids: None, clock)


def see(service: Service, clock: Clock, names: str, **pilots: str) -> None:
    """A snapshot one second later; `pilots` maps node to job id."""
    clock.now += 1
    nodes = {name: node(name, "ALLOCATED" if name in pilots else "IDLE") for name in names.split()}
    jobs = tuple(pilot(job_id, where) for where, job_id in pilots.items())
    service.observe(Snapshot(clock.now, nodes, jobs, ()))


def test_steps_may_be_lost_if_the_host_went_down_under_a_daemon_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "ledger", Clock()

    def lacks() -> bool:
        ledger = Ledger(path)
        try:
            return ledger.may_lack_steps
        finally:
            ledger.close()

    first = start(path, clock)
    assert not first.ledger.may_lack_steps
    first.apply(Registered(clock.now, registration("1")))
    killed = _copied(path, tmp_path / "killed")
    first.ledger.close()
    assert not lacks()
    path = killed
    assert not lacks()
    monkeypatch.setattr(filesystem, "boot_id", lambda: "another")
    assert lacks()
    assert lacks(), "nobody has begun with it"
    again = start(path, clock)
    assert again.state.sequence > first.state.sequence
    assert again.state.trainers["1"].epoch > 1000
    again.ledger.close()
    assert not lacks()


def _copied(path: Path, to: Path) -> Path:
    """A ledger's files as they are while a daemon has it."""
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{to}{end}")
    return to


def test_a_restart_brings_back_trainers_leases_their_numbers_and_the_node_seconds(tmp_path: Path) -> None:
    clock = Clock()
    first = start(tmp_path / "ledger", clock)
    asked = registration("1", nodes_max=2, sizes=(1, 2), curve=((1, 10.0), (4, 30.0)), up_cost_s=3.0)
    first.apply(Registered(clock.now, asked))
    see(first, clock, "n1 n2")
    see(first, clock, "n1 n2")
    one, two = first.state.leases.values()
    reports = [lease(item.id, "placed", job_id=f"7{item.node[1]}") for item in (one, two)]
    progress = ProgressReport(1.0, step=9, samples=90.0, samples_per_s=12.0, nodes=1, loss=0.1)
    first.apply(reported(clock.now, "1", *reports, progress))
    see(first, clock, "n1 n2", n1="71", n2="72")
    see(first, clock, "n1 n2", n1="71", n2="72")
    before = first.state
    assert before.usage.used_node_seconds > 0
    first.ledger.close()

    clock.now += 100
    second = start(tmp_path / "ledger", clock)
    after = second.state
    validate_state(after)
    assert list(after.trainers) == ["1"]
    mine = after.trainers["1"]
    assert (mine.step, mine.samples, mine.knowledge) == (9, 90.0, before.trainers["1"].knowledge)
    assert mine.request == asked
    assert mine.version >= before.trainers["1"].version
    assert mine.epoch == before.trainers["1"].epoch
    assert {item.id: item.job_id for item in after.leases.values()} == {one.id: "71", two.id: "72"}
    assert after.usage == before.usage
    assert after.sequence == before.sequence
    # the pilots are seen again and kept; the node-seconds of the gap are not counted
    see(second, clock, "n1 n2", n1="71", n2="72")
    assert all(item.live and item.observed for item in second.state.leases.values())
    assert second.state.usage == before.usage
    second.ledger.close()


def test_a_restart_does_not_give_back_what_the_pool_has_not_been_seen_without(tmp_path: Path) -> None:
    clock = Clock()
    first = start(tmp_path / "ledger", clock)
    first.apply(Registered(clock.now, registration("1", nodes_max=1)))
    see(first, clock, "n1")
    see(first, clock, "n1")
    (only,) = first.state.leases.values()
    first.apply(reported(clock.now, "1", lease(only.id, "placed", job_id="71")))
    first.ledger.close()
    second = start(tmp_path / "ledger", clock)
    second.apply(Registered(clock.now, registration("1", nodes_max=1, held=(Held(only.id, "n1", "71"),))))
    assert second.state.leases[only.id].live
    second.ledger.close()


def test_tuned_settings_survive_a_restart_and_win_over_the_file(tmp_path: Path) -> None:
    clock = Clock()
    first = start(tmp_path / "ledger", clock)
    first.tune({"t_fwd_s": 33.0})
    first.tune({"pj_max": 2})
    first.configure(Config())
    first.ledger.close()
    second = start(tmp_path / "ledger", clock)
    assert (second.state.settings.decide.t_fwd_s, second.state.settings.decide.pj_max) == (33.0, 2)
    assert second.state.settings.decide.objective == Config().decide.objective
    second.ledger.close()


def test_decisions_are_kept_as_sentences_by_trainer_and_events_have_a_tail(tmp_path: Path) -> None:
    clock = Clock()
    service = start(tmp_path / "ledger", clock)
    service.apply(Registered(clock.now, registration("1", name="train-a", nodes_max=1)))
    see(service, clock, "n1 n2")
    see(service, clock, "n1 n2")
    service.apply(Registered(clock.now, registration("2", name="train-b", nodes_max=1)))
    service.apply(Finished(clock.now, "1", 0, "", Summary(step=5)))
    told = [decision["text"] for decision in service.ledger.decisions("1", 10)]
    assert told[-2:] == [
        "train-a "
        + wording("core.sentences.starts", count="1 node", nodes="n2", rate="")
        + wording("protocol.changes.unknown_speed"),
        "train-a " + wording("core.sentences.finished", exit_code=0),
    ]
    assert all("train-b" not in text for text in told)
    ended = {"kind": "finished", "who": "train-a", "exit_code": 0, "why": "", "step": 0}
    assert service.ledger.decisions("1", 1)[0]["decision"] == ended
    assert len(service.ledger.decisions(None, 1)) == 1
    events = service.ledger.events(0, 1000)
    rows = [event["rowid"] for event in events]
    assert rows == sorted(rows)
    assert service.ledger.events(rows[2], 2) == events[3:5]
    finished = [event for event in events if event["kind"] == "finished"]
    assert finished[0]["data"]["summary"] == {"step": 5}
    service.ledger.close()


def test_old_events_are_pruned_at_the_start(tmp_path: Path) -> None:
    clock = Clock()
    service = start(tmp_path / "ledger", clock)
    service.apply(Registered(clock.now, registration("1")))
    service.ledger.close()
    clock.now += 40 * 86400
    later = start(tmp_path / "ledger", clock)
    assert all(event["at_s"] >= clock.now for event in later.ledger.events(0, 100))
    later.ledger.close()


def test_a_second_daemon_on_the_ledger_is_told_so_in_one_line(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger")
    with pytest.raises(LedgerError, match=pattern("service.ledger.in_use")):
        Ledger(tmp_path / "ledger")
    first.close()
    Ledger(tmp_path / "ledger").close()


def test_the_ledger_is_free_again_when_its_daemon_was_killed(tmp_path: Path) -> None:
    code = "import os, sys; from bftd.ledger.file import Ledger; kept = Ledger(sys.argv[1]); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "ledger")], timeout=STILL_S)
    assert killed.returncode == -9
    Ledger(tmp_path / "ledger").close()


def test_a_ledger_of_another_schema_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "newer")
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(LedgerError, match="has schema 99"):
        Ledger(tmp_path / "newer")
    (tmp_path / "text").write_text("this is no database, but it is long enough to be read as one" * 20)
    with pytest.raises(LedgerError, match="move it away"):
        Ledger(tmp_path / "text")


def rewrite(path: Path, statement: str, *values: str) -> None:
    """Change a closed ledger behind the daemon's back."""
    database = sqlite3.connect(path)
    database.execute(statement, values)
    database.commit()
    database.close()


@pytest.mark.parametrize("body", ["{}", "[]", "null", "nonsense", '{"request": 7}', "[" * 100_000])
@pytest.mark.parametrize("table", ["trainers", "leases"])
def test_a_ledger_whose_trainers_or_leases_are_not_such_is_told_in_one_line(
    tmp_path: Path, table: str, body: str
) -> None:
    path = tmp_path / "ledger"
    Ledger(path).close()
    rewrite(path, f"INSERT INTO {table} VALUES ('1', 1.0, ?)", body)
    ledger = Ledger(path)
    with pytest.raises(LedgerError) as error:
        ledger.load(0.0)
    ledger.close()
    assert str(path) in str(error.value)
    assert "move it away" in str(error.value)
    assert "\n" not in str(error.value)


def not_ours(path: Path) -> str:
    """The message as a pattern of one line."""
    return "^" + pattern("service.ledger.not_ours", path=path, error="ERROR").replace("ERROR", ".*") + "$"


@pytest.mark.parametrize(("key", "value"), [("tuned", "[1]"), ("tuned", "{"), ("backoff", "7"), ("failures", "{")])
def test_a_ledger_whose_kept_values_are_not_such_is_told_in_one_line(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "ledger"
    Ledger(path).close()
    rewrite(path, "INSERT INTO meta VALUES (?, ?)", key, value)
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match=not_ours(path)):
        Service(Config(), ledger, lambda job_ids: None, Clock())
    ledger.close()


def test_a_ledger_whose_kept_object_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path).close()
    rewrite(path, "INSERT INTO meta VALUES ('kept.totals', '7')")
    ledger = Ledger(path)
    with pytest.raises(
        LedgerError, match=pattern("service.ledger.not_an_object", key="kept.totals") + ".*: move it away"
    ):
        ledger.kept("totals")
    ledger.close()


@pytest.mark.parametrize("data", ["{", "[]", '{"duration_s": "long"}', "[" * 100_000])
def test_regression_a_damaged_event_ended_the_daemon_at_its_start_without_a_line(tmp_path: Path, data: str) -> None:
    path = tmp_path / "ledger"
    Ledger(path).close()
    rewrite(path, "INSERT INTO events (at_s, kind, data) VALUES (1.0, 'give_back', ?)", data)
    ledger = Ledger(path)
    with pytest.raises(LedgerError, match=not_ours(path)):
        Service(Config(), ledger, lambda job_ids: None, Clock())
    ledger.close()


SPOILED = ("UPDATE trainers SET body = '{}'", "UPDATE trainers SET body = '[]'", "UPDATE meta SET value = 'live'")


@pytest.mark.parametrize("statement", SPOILED)
def test_an_older_ledger_that_cannot_be_upgraded_is_told_in_one_line_and_left_as_it_is(
    tmp_path: Path, statement: str
) -> None:
    path = tmp_path / "ledger"
    database = sqlite3.connect(path)
    database.executescript(FIRST_SCHEMA.read_text())
    database.close()
    rewrite(path, statement)
    for _ in range(2):  # the lock is free again
        with pytest.raises(LedgerError, match=not_ours(path)):
            Ledger(path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()


def test_a_tuned_setting_that_is_not_good_any_more_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.set_tuned({"pj_max": 7, "t_fwd_s": 0, "objective": ["speed"], "gone": 1})
    ledger.close()
    service = start(path, Clock())
    settings, defaults = service.state.settings.decide, Config().decide
    assert settings.pj_max == 7
    assert (settings.t_fwd_s, settings.objective) == (defaults.t_fwd_s, defaults.objective)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        wording(
            "service.settings.dropped", error=wording("bftd.key_fields.too_small", where="t_fwd_s", low=0.1, value=0.0)
        ),
        wording(
            "service.settings.dropped",
            error=wording(
                "bftd.key_fields.wrong", where="objective", wanted="a text", shown="['speed']", example='"efficiency"'
            ),
        ),
        wording("service.settings.not_tunable", name="'gone'"),
    ]
    service.ledger.close()


def test_a_step_that_cannot_be_written_leaves_no_half(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    after = State(time_s=1.0, trainers={"1": trainer("1")}, sequence=5)

    class Broken:
        """No action at all."""

    with pytest.raises(AssertionError):
        ledger.save(State(), after, [Broken()])  # type: ignore[list-item]
    assert ledger.load(0.0).trainers == {}
    assert ledger.load(0.0).sequence == 0
    ledger.close()


def test_what_is_known_against_nodes_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    first = start(tmp_path / "ledger", clock)
    first.apply(Registered(clock.now, registration("1", nodes_max=3)))
    see(first, clock, "n1 n2 n3")
    see(first, clock, "n1 n2 n3")
    on = {item.node: item.id for item in first.state.leases.values()}
    first.apply(reported(clock.now, "1", lease(on["n2"], "placed", job_id="70")))
    # several pilots fail on n3
    for job_id in ("71", "72", "73"):
        if on["n3"] not in first.state.leases:
            see(first, clock, "n1 n2 n3", n2="70")
            on |= {item.node: item.id for item in first.state.leases.values()}
        first.apply(reported(clock.now, "1", lease(on["n3"], "placed", job_id=job_id)))
        see(first, clock, "n1 n2 n3", n2="70", n3=job_id)
        first.apply(reported(clock.now, "1", CrashReport(clock.now, "n3", 1)))
        if job_id != "73":
            first.apply(reported(clock.now, "1", lease(on["n3"], "ended")))
    first.apply(reported(clock.now, "1", lease(on["n1"], "refused"), CrashReport(clock.now, "n2", 1)))
    before = first.state
    assert set(before.backoff) == {"n1"}
    assert set(before.failures) == {"n2"}
    assert set(before.quarantined) == {"n3"}
    first.ledger.close()

    second = start(tmp_path / "ledger", clock)
    after = second.state
    assert (after.backoff, after.failures, after.quarantined) == (before.backoff, before.failures, before.quarantined)
    for _ in range(2):
        see(second, clock, "n1 n2 n3")
    assert not second.state.pool.nodes["n3"].in_pool
    assert "quarantine" in second.state.pool.nodes["n3"].why
    second.ledger.close()


def test_a_ledger_of_the_first_schema_is_opened_with_all_that_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    database = sqlite3.connect(path)
    database.executescript(FIRST_SCHEMA.read_text())
    database.close()
    clock = Clock()
    clock.now = 2000.0
    service = start(path, clock)
    validate_state(service.state)
    first, second = service.state.trainers.values()
    assert first.request == Registration(
        *("17", "train-a", "horovod", Sizes(1, 4, (1, 2, 4)), "ann", "elastic"),
        weight=2.0,
        workers_per_node=3,
        curve=((1, 10.0), (4, 30.0)),
        up_cost_s=3.0,
    )
    assert (first.step, first.samples, first.loss, first.state, first.epoch) == (9, 90.0, 0.5, "running", 1)
    assert first.knowledge.seen == ((2, 12.0),)
    assert (second.id, second.user, second.sizes) == ("18", "bob", Sizes(1, 1))
    jobs = {item.id: item.job_id for item in service.state.leases.values()}
    assert jobs == {"n1.1": "71", "n2.2": "72", "n3.3": "73"}
    assert (service.state.sequence, service.state.usage.used_node_seconds) == (3, 3.0)
    assert set(service.state.failures) == {"n1"}
    assert service.state.settings.decide.pj_max == 7
    assert any("starts on 2 nodes" in told["text"] for told in service.ledger.decisions("17", 50))
    see(service, clock, "n1 n2 n3", n1="71", n2="72", n3="73")
    assert all(item.live and item.observed for item in service.state.leases.values())
    service.ledger.close()
    again = start(path, clock)  # and what was written since is of this schema
    assert again.state.trainers["17"].request == first.request
    again.ledger.close()


def test_regression_each_poll_of_a_driver_wrote_its_trainer_down_again(tmp_path: Path) -> None:
    clock = Clock()
    service = start(tmp_path / "ledger", clock)
    held = tuple(Held(f"n{number}.{number}", f"n{number}", None) for number in range(2000))
    service.apply(Registered(clock.now, registration("1", nodes_max=1000, held=held)))
    unknown = service.state.trainers["1"].unknown_leases
    assert 0 < len(unknown) < 2000, "a driver gives back what no list names"
    assert service.state.sequence == 1999, "and its numbers do not come again"
    with sqlite3.connect(tmp_path / "ledger") as db:
        assert db.execute("SELECT length(body) FROM trainers").fetchone()[0] < 2000
        written = service.ledger.written_bytes
        for _ in range(3):
            clock.now += 1
            service.apply(Heard(clock.now, "1"))
        assert service.state.trainers["1"].heard_s == clock.now
        assert service.ledger.written_bytes == written
    service.apply(reported(clock.now, "1", ProgressReport(1.0, step=9, samples=90.0)))
    assert service.ledger.written_bytes > written


def test_a_large_cluster_plans_for_new_trainers_with_the_next_snapshot(tmp_path: Path) -> None:
    clock = Clock()
    service = start(tmp_path / "ledger", clock)
    for _ in range(2):
        see(service, clock, "n1 n2")
    few = [registration(str(number), nodes_max=1) for number in range(live.PLANNED_AT_ONCE_MOST + 1)]
    service.apply(*(Registered(clock.now, request) for request in few[:1]))
    assert len(service.state.leases) == 1, "in a small one it is planned for at once"
    service.apply(*(Registered(clock.now, request) for request in few[1:]))
    service.apply(Registered(clock.now, registration("late", nodes_max=1)))
    assert service.state.plan_due
    clock.now += 1
    see(service, clock, "n1 n2")
    assert not service.state.plan_due
