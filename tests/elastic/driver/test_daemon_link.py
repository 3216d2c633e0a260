"""The driver's link to the daemon, over the real wire: what happens when the daemon is away, forgets, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from bftd.protocol.bounds import VERSION
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Registration
from bftd.protocol.reports import Finish, NoteReport, ProgressReport, Reports, Summary
from bftd.protocol.sizes import Sizes
from elastic.driver import daemon_link as daemons
from elastic.driver.daemon_link import DaemonLink, read_token
from tests.elastic.fakes import until
from tests.elastic.scripted_daemon import ScriptedDaemon
from tests.support.messages import wording

pytestmark = pytest.mark.slow

REGISTRATION = Registration("7", "test", "torchrun", Sizes(1, 4))


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    monkeypatch.setattr(daemons, "DAEMON_RETRY_S", 0.01)
    monkeypatch.setattr(daemons, "LONG_POLL_S", 0.2)
    with ScriptedDaemon(tmp_path_factory.mktemp("d") / "s") as daemon:
        yield daemon


class Client:
    """A link, and what it told."""

    def __init__(self, daemon: ScriptedDaemon) -> None:
        self.leases: list[list[str]] = []
        self.fenced = 0
        self.lines: list[str] = []
        self.link = DaemonLink(
            str(daemon.socket_path),
            lambda: REGISTRATION,
            self._take,
            self._on_fenced,
            self.lines.append,
        )

    def _take(self, listed: Leases) -> None:
        self.leases.append([lease.id for lease in listed.leases])

    def _on_fenced(self) -> None:
        self.fenced += 1


@asynccontextmanager
async def connected(daemon: ScriptedDaemon) -> AsyncIterator[Client]:
    client = Client(daemon)
    running = asyncio.create_task(client.link.run())
    await asyncio.sleep(0)  # it begins
    yield client
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def client(daemon: ScriptedDaemon) -> AbstractAsyncContextManager[Client]:
    return connected(daemon)


def notes(daemon: ScriptedDaemon) -> list[str]:
    return [report.text for report in daemon.of(NoteReport)]


def note(text: str) -> NoteReport:
    return NoteReport(1.0, text)


async def test_leases_come_as_they_are_granted_and_events_go_out_in_order(
    daemon: ScriptedDaemon, client: Client
) -> None:
    client.link.report(note("one"))
    await until("registered", lambda: client.leases == [[]])
    daemon.grant("n1")
    await until("granted", lambda: client.leases[-1] == ["n1.1"])
    client.link.report(note("two"))
    client.link.report(note("three"))
    await until("delivered", lambda: notes(daemon) == ["one", "two", "three"])


async def test_while_the_daemon_is_away_events_are_kept_and_it_is_said_once(
    daemon: ScriptedDaemon, client: Client
) -> None:
    await until("registered", lambda: client.leases)
    await asyncio.to_thread(daemon.stop)
    await until("said", lambda: client.lines)
    for text in ("one", "two"):
        client.link.report(note(text))
    await asyncio.to_thread(daemon.start)
    await until("delivered", lambda: notes(daemon) == ["one", "two"])
    await until("said", lambda: client.lines[-1] == "bftd is back")
    assert len([line for line in client.lines if "does not answer" in line]) == 1


async def test_a_daemon_that_lost_its_ledger_gets_the_trainer_again(daemon: ScriptedDaemon) -> None:
    async with connected(daemon) as client:
        await until("registered", lambda: client.leases)
        daemon.forget()
        await until("registered again", lambda: len(daemon.registrations) == 2)
        client.link.report(note("still here"))
        await until("delivered", lambda: notes(daemon) == ["still here"])
    assert client.fenced == 0


async def test_what_the_daemon_says_at_registration_is_in_the_log(daemon: ScriptedDaemon) -> None:
    daemon.note = "it grants nothing"
    async with connected(daemon) as client:
        await until("registered", lambda: client.leases == [[]])
    assert client.lines == ["it grants nothing"]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            "protocol",
            "the daemon's answer: " + wording("protocol.registration.other_protocol", version=1, VERSION=VERSION),
        ),
        ("min_window_s", "leases: min_window_s is missing"),
        ("epoch", wording("protocol.registration.answer") + ": epoch is missing"),
        ("leases", wording("protocol.fields.wrong", where="leases", name="leases", wanted="a list", shown="None")),
    ],
)
async def test_a_daemon_of_an_older_version_is_told_of_in_one_line_until_it_is_upgraded(
    daemon: ScriptedDaemon, missing: str, said: str
) -> None:
    daemon.leave_out = {missing}
    daemon.grant("n1")
    async with connected(daemon) as client:
        await until("asked again", lambda: len(daemon.registrations) >= 3)
        assert (client.leases, client.lines) == ([], [f"bftd: {said}"])
        daemon.leave_out = set()
        await until("registered", lambda: client.leases == [["n1.1"]])
    assert client.lines == [f"bftd: {said}"]


async def test_a_list_that_cannot_be_read_is_asked_for_again_and_what_is_held_is_kept(daemon: ScriptedDaemon) -> None:
    async with connected(daemon) as client:
        await until("registered", lambda: client.leases == [[]])
        daemon.leave_out = {"leases"}
        daemon.grant("n1")
        await until("said", lambda: client.lines)
        assert client.leases == [[]]
        daemon.leave_out = set()
        await until("granted", lambda: client.leases == [[], ["n1.1"]])
    assert client.lines == [
        "bftd: " + wording("protocol.fields.wrong", where="leases", name="leases", wanted="a list", shown="None")
    ]
    assert len(daemon.registrations) == 1


async def test_no_request_holds_more_than_500_reports(daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    of_body = Reports.from_json

    def counted(body: object) -> Reports:
        read = of_body(body)
        told.append(len(read.reports))
        return read

    monkeypatch.setattr(Reports, "from_json", counted)
    async with connected(daemon) as client:
        for number in range(1001):
            client.link.report(note(str(number)))
        await until("delivered", lambda: notes(daemon) == [str(number) for number in range(1001)])
    assert told == [500, 500, 1]


async def test_a_driver_that_was_replaced_learns_it(daemon: ScriptedDaemon, client: Client) -> None:
    await until("registered", lambda: client.leases)
    daemon.registrations.append(REGISTRATION)
    await until("fenced", lambda: client.fenced)


async def test_an_event_that_the_daemon_refuses_does_not_hold_up_the_others(daemon: ScriptedDaemon) -> None:
    daemon.refused_texts.add("bad")
    async with connected(daemon) as client:
        for text in ("one", "bad", "two"):
            client.link.report(note(text))
        await until("delivered", lambda: notes(daemon) == ["one", "two"])


async def test_what_happens_while_a_report_is_under_way_is_reported_next(
    daemon: ScriptedDaemon, client: Client
) -> None:
    daemon.slow = True
    client.link.report(note("one"))
    await until("under way", lambda: notes(daemon) == ["one"])
    client.link.report(note("two"))
    daemon.slow = False
    await until("delivered", lambda: notes(daemon) == ["one", "two"])


async def test_the_backlog_of_a_long_absence_drops_old_progress_first(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "_BACKLOG", 3)
    async with connected(daemon) as client:
        told = (note("a"), ProgressReport(1.0, 1, 10), ProgressReport(1.0, 2, 20), note("b"))
        for report in told:
            client.link.report(report)
        await until("delivered", lambda: len(daemon.reports) == 3)
        assert daemon.reports == [told[0], *told[2:]]


async def test_the_end_is_told_after_all_else_and_a_daemon_that_is_away_delays_no_exit(daemon: ScriptedDaemon) -> None:
    async with connected(daemon) as client:
        await until("registered", lambda: client.leases)
    client.link.report(note("last"))
    await client.link.finish(3, "crashed", Summary(step=4))
    assert notes(daemon) == ["last"]
    assert daemon.finished == Finish(1, 3, "crashed", Summary(step=4))
    daemon.stop()
    await asyncio.wait_for(client.link.finish(3, "crashed", Summary()), 20)


async def test_the_last_lines_of_the_log_are_sent_when_they_have_changed_and_at_the_end(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "TAIL_S", 0.02)
    tail = ["begun"]
    link = DaemonLink(str(daemon.socket_path), lambda: REGISTRATION, lambda _: None, lambda: None, print,
                      tail=lambda: tuple(tail))  # fmt: skip
    running = asyncio.create_task(link.run())
    await until("sent without a report", lambda: daemon.tails == [("begun",)])
    link.report(note("a"))
    await until("a report without lines", lambda: notes(daemon) == ["a"])
    assert daemon.tails == [("begun",)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    monkeypatch.setattr(daemons, "TAIL_S", 60.0)
    tail.append("the end")
    await link.finish(0, "", Summary())
    assert daemon.tails == [("begun",), ("begun", "the end")]


async def test_a_trainer_that_cannot_begin_is_registered_and_ended_at_once(daemon: ScriptedDaemon) -> None:
    link = Client(daemon).link
    await link.finish_unbegun(2, "no such folder")
    assert [request.id for request in daemon.registrations] == ["7"]
    assert daemon.finished == Finish(1, 2, "no such folder", Summary())
    daemon.stop()
    await asyncio.wait_for(Client(daemon).link.finish_unbegun(2, "no such folder"), 20)


def test_the_token_of_a_daemon_reached_by_tcp_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("5a17\n")
    assert read_token(str(tmp_path / "token")) == "5a17"
    assert read_token(None) is None


async def test_with_the_answer_to_reports_comes_in_how_long_the_trainer_ends_and_an_older_daemon_does_not_tell(
    daemon: ScriptedDaemon,
) -> None:
    async with connected(daemon) as client:
        daemon.ends_in_s = 600.0
        client.link.report(note("one"))
        await until("told", lambda: client.link.ends_in_s is not None)
        assert client.link.ends_in_s == pytest.approx(600.0, abs=60.0)
        daemon.leave_out = {"ends_in_s"}
        client.link.report(note("two"))
        await until("not known any more", lambda: client.link.ends_in_s is None)
    assert notes(daemon) == ["one", "two"]
