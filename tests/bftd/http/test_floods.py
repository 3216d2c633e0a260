"""What one user of the daemon's host may take from the others: connections, the loop's time, and the ledger."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bftd.http import connections, overview
from bftd.http.connections import ApiConnections, Door
from bftd.http.note_limit import Notes
from bftd.http.rate_limit import BURST, Budgets
from bftd.ledger import reader
from bftd.ledger.history import quota
from bftd.protocol import bounds
from bftd.protocol.reports import NoteReport, ProgressReport
from bftd.service import status
from tests.bftd.http.test_api import TRAINER, Served, as_user, serving
from tests.support.messages import wording
from tests.support.ports import free_port
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

REPORT = "/v1/trainers/run-here-1/report"
NOTE = {"op": "note", "at_s": 1.0, "text": "hello"}
_SLOW_CLIENT = """
import socket, sys, time
path, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
opened = []
for number in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    opened.append(one)
    if number % 2:
        try:
            one.send(b"GET /v1/status HTTP/1.1\\r\\nX: ")
        except OSError:
            pass  # closed already: it was long ago that it was opened
print("open", flush=True)
open_, end = set(opened), time.time() + seconds
while open_ and time.time() < end:
    time.sleep(0.1)
    for one in list(open_):
        one.settimeout(0.01)
        try:
            if opened.index(one) % 2:
                one.send(b"T")
            gone = one.recv(1) == b""
        except (TimeoutError, BlockingIOError):
            gone = False
        except OSError:
            gone = True
        if gone:
            open_.remove(one)
closed = count - len(open_)
print(closed, flush=True)
"""


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests' connections be those of an ordinary user."""
    monkeypatch.setattr(connections, "holder_of", lambda transport: 4711)


async def answered(path: Path) -> bool:
    """Whether a new connection is served."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /v1/status HTTP/1.1\r\nHost: b\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), STILL_S)
        writer.close()
    except OSError:
        return False
    return line.startswith(b"HTTP/1.1 200")


async def test_regression_idle_and_dripping_connections_of_a_slow_client_were_never_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordinary: None
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.3)
    monkeypatch.setattr(connections, "OF_A_USER_MOST", 20)
    async with serving(tmp_path):
        command = [sys.executable, "-c", _SLOW_CLIENT, str(tmp_path / "socket"), "40", "30"]
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        assert await client.stdout.readline() == b"40\n"
        assert await client.wait() == 0
        assert await answered(tmp_path / "socket")


async def test_a_user_has_so_many_connections_and_one_that_waits_for_nothing_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordinary: None
) -> None:
    monkeypatch.setattr(connections, "OF_A_USER_MOST", 3)
    async with serving(tmp_path) as served:
        path = str(tmp_path / "socket")
        _, first = await served.ask("POST", "/v1/trainers", TRAINER)  # kept alive, and idle from now on
        silent = [await asyncio.open_unix_connection(path) for _ in range(2)]
        assert await answered(tmp_path / "socket"), "the idle one made way"
        third = await asyncio.open_unix_connection(path)
        await asyncio.sleep(0.05)
        assert not await answered(tmp_path / "socket"), "no request has come on any of the three yet"
        for _, writer in (*silent, third):
            writer.close()
        await asyncio.sleep(0.05)
        assert await answered(tmp_path / "socket")
        assert first["epoch"] == 1


def forty() -> ApiConnections:
    """Connections where 40 may be open at once."""
    return ApiConnections(connections.RESERVED_FILES + 40)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 40 connections be all that may be open: 10 of them of strangers, and 20 that have proved themselves."""
    monkeypatch.setattr("bftd.http.auth.gate.ApiConnections", forty)


async def silent(port: str, count: int) -> list[asyncio.StreamWriter]:
    """So many connections on TCP that never say a word."""
    return [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]


@asynccontextmanager
async def with_token(folder: Path) -> AsyncIterator[tuple[Served, str, dict[str, str]]]:
    """A service on TCP, its port, and the header that proves who asks."""
    port = str(free_port())
    async with serving(folder, tcp=f"127.0.0.1:{port}", token="secret") as served:
        yield served, port, {"Authorization": "Bearer secret"}


async def test_regression_silent_connections_of_an_address_shut_out_all_others_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "OF_AN_ADDRESS_MOST", 5)
    async with with_token(tmp_path) as (_, port, headers):
        base = f"http://127.0.0.1:{port}/v1/status"
        # closed by the server, an idle connection would be opened anew without a word; so this one is watched
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = b"GET /v1/status HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer secret\r\n\r\n"
        for silent_ones in (0, 30, 30):
            held = await silent(port, silent_ones)
            writer.write(asked)
            told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), STILL_S)
            assert told.startswith(b"HTTP/1.1 200"), "one that has proved itself is kept"
            await reader.readexactly(int(told.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            async with aiohttp.ClientSession() as other, other.get(base, headers=headers) as answer:
                assert answer.status == 200, "a new one is served"
            for each in held:
                each.close()
        writer.close()


async def test_regression_connections_of_many_addresses_left_none_to_the_users_of_the_unix_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None
) -> None:
    numbers = iter(range(10_000))
    real = connections.holder_of

    def holder_of(transport: asyncio.BaseTransport) -> object:
        """Every connection on TCP comes from an address of its own, and those of the unix socket from another user."""
        return f"10.0.0.{next(numbers)}" if isinstance(real(transport), str) else 4711

    monkeypatch.setattr(connections, "holder_of", holder_of)
    monkeypatch.setattr(ApiConnections, "prove", lambda *_: None)
    async with with_token(tmp_path) as (served, port, headers):
        held = await silent(port, 200)
        code, _ = await served.ask("GET", "/v1/status", headers=headers)
        assert code == 200
        local = [await asyncio.open_unix_connection(str(tmp_path / "socket")) for _ in range(9)]
        assert await answered(tmp_path / "socket")
        for writer in (*held, *(writer for _, writer in local)):
            writer.close()


async def test_of_those_that_have_proved_themselves_so_many_are_kept_and_the_rest_are_strangers() -> None:
    made = forty()
    doors = [opened(made, "10.0.0.1") for _ in range(10)]
    for door in doors:
        made.began(door.proxy)
        made.prove(door.proxy, 4711)
    assert [door.holder for door in doors] == [("proved", 4711)] * 10, "a quarter of all is one user's"
    one_more = opened(made, "10.0.0.1")
    made.began(one_more.proxy)
    made.prove(one_more.proxy, 4711)
    assert one_more in made._strangers, "none of his waits for nothing"
    made.ended(doors[0].proxy)
    made.prove(one_more.proxy, 4711)
    assert one_more in made._proved
    assert doors[0].proxy.is_closing(), "an idle one of his own made way"
    for user in (1, 2, 3):
        for door in [opened(made, "10.0.0.1") for _ in range(10)]:
            made.began(door.proxy)
            made.prove(door.proxy, user)
    assert len([door for door in made._proved if not door.proxy.is_closing()]) == 20
    strangers = [opened(made, "10.0.0.2") for _ in range(30)]
    assert [door.proxy.is_closing() for door in strangers] == [True] * 20 + [False] * 10, "the oldest make way"
    assert len(made) == 30


class Pipe(asyncio.Transport):
    """A connection from an address, without a network."""

    def __init__(self, address: str) -> None:
        super().__init__({"socket": socket.socket(), "peername": (address, 1)})
        self.get_extra_info("socket").close()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def opened(made: ApiConnections, address: str) -> Door:
    """A new connection."""
    door = Door(made, asyncio.Protocol)
    door.connection_made(Pipe(address))
    return door


def test_files_are_left_for_the_commands_of_slurm() -> None:
    assert ApiConnections(files_most=1024).most == 1024 - connections.RESERVED_FILES
    assert ApiConnections(files_most=1024).most > connections.OF_A_USER_MOST


async def test_no_holder_waits_for_all_that_another_has_sent_before() -> None:
    done: list[str] = []
    turns = ApiConnections().turns
    for number in range(100):
        turns.wait("eve", lambda number=number: done.append(f"eve {number}"))
    turns.wait("ann", lambda: done.append("ann"))
    while len(done) < 101:
        await asyncio.sleep(0)
    assert done.index("ann") <= 2
    assert [name for name in done if name != "ann"] == [f"eve {number}" for number in range(100)]


async def test_regression_a_body_of_too_much_kept_the_loop_for_seconds(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    lists = "[" + "[]," * (bounds.BODY_VALUES_MOST // 2) + "[]]"
    too_many = {
        lists: wording("http.reading.too_many_values", BODY_VALUES_MOST=bounds.BODY_VALUES_MOST),
        "[" + " " * bounds.BODY_BYTES_MOST + "]": wording(
            "http.reading.too_many_bytes", BODY_BYTES_MOST=bounds.BODY_BYTES_MOST
        ),
        json.dumps({"epoch": 1, "events": [NOTE] * (bounds.REPORTS_MOST + 1)}): wording(
            "protocol.fields.too_many_items", where="report", name="events", most=500, len=501
        ),
    }
    for body, told in too_many.items():
        assert await served.ask("POST", REPORT, data=body) == (400, {"error": told})
    held = [{"id": f"n{number}.1"} for number in range(9)]
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER | {"held": held})
    assert (code, answer["error"]) == (400, "trainer: held may hold 8 items, not 9")


async def test_a_batch_that_an_older_driver_sends_is_refused_so_that_each_report_comes_alone(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    batch = [{"op": "progress", "at_s": 1, "step": step, "samples": step} for step in range(1, 602)]
    assert (await served.ask("POST", REPORT, {"epoch": 1, "events": batch}))[0] == 400, "400 is what it splits for"
    assert served.service.state.trainers["run-here-1"].step == 0, "nothing of it counts twice"
    assert (await served.ask("POST", REPORT, {"epoch": 1, "events": batch[-1:]}))[0] == 200
    assert served.service.state.trainers["run-here-1"].step == 601


async def test_regression_notes_flooded_the_log_and_the_ledger(
    caplog: pytest.LogCaptureFixture, served: Served
) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    with caplog.at_level(logging.INFO, logger="bftd"):
        assert (await served.ask("POST", REPORT, {"epoch": 1, "events": [NOTE] * 500}))[0] == 200
    assert not [record for record in caplog.records if "hello" in record.getMessage()]
    told = served.service.ledger.decisions("run-here-1", 1000)
    assert len(told) == bounds.NOTES_AT_ONCE_MOST


def test_notes_are_taken_once_a_second_and_those_dropped_are_counted() -> None:
    notes, progress = Notes(), ProgressReport(1.0, 1, 1.0)
    reports = [*[NoteReport(1.0, f"note {number}") for number in range(14)], progress]
    taken = notes.taken("a", reports, 100.0)
    assert len(taken) == bounds.NOTES_AT_ONCE_MOST + 1
    assert taken[-1] is progress
    assert notes.taken("a", reports[:1], 100.5) == []
    (later,) = notes.taken("a", reports[:1], 101.5)
    assert isinstance(later, NoteReport)
    assert later.text == "note 0" + wording("http.notes.dropped", dropped=5)
    assert len(notes.taken("b", reports, 101.5)) == bounds.NOTES_AT_ONCE_MOST + 1, "each trainer has his own"


async def test_what_is_written_down_is_charged_to_who_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []
    monkeypatch.setattr(Budgets, "charge", lambda self, uid, units, now_s: charged.append(units))
    async with serving(tmp_path) as served:
        as_user(monkeypatch, "ann")
        _, first = await served.ask("POST", "/v1/trainers", TRAINER)
        resizes = [{"op": "resize", "at_s": 1, "from_nodes": 1, "to_nodes": 2, "kind": "up"} for _ in range(200)]
        await served.ask("POST", REPORT, {"epoch": 1, "events": resizes})
        assert sum(charged) > 200 * 200 / 4096
        charged.clear()
        await served.ask("GET", f"/v1/trainers/run-here-1/leases?epoch=1&version={first['version']}&wait_s=0")
        assert charged == [], "that a driver was heard is not written"


def test_what_was_charged_has_to_be_waited_for() -> None:
    budgets = Budgets()
    budgets.charge(7, 3 * BURST, 0.0)
    assert not budgets.spend(7, 1.0, 0.0)
    assert not budgets.spend(7, 1.0, BURST / 100 - 1)
    assert budgets.spend(7, 1.0, BURST / 100 + 1), "no more than a burst is owed"
    assert budgets.spend(8, BURST, 0.0)


async def test_beyond_a_days_share_of_the_ledger_a_users_reports_act_and_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quota, "BYTES_A_DAY", 50_000)
    caplog.set_level(logging.WARNING, logger="bftd")
    async with serving(tmp_path) as served:
        for name, user in (("run-here-1", "ann"), ("run-here-2", "bob")):
            await served.ask("POST", "/v1/trainers", TRAINER | {"id": name, "user": user})
        events = [{"op": "resize", "at_s": 1, "from_nodes": 1, "to_nodes": 2, "kind": "up"} for _ in range(100)]
        for _ in range(4):
            assert (await served.ask("POST", REPORT, {"epoch": 1, "events": events}))[0] == 200
        assert served.service.state.trainers["run-here-1"].resizes == 400
        kept = [event for event in served.service.ledger.events(0, 10_000) if event["kind"] == "resize"]
        assert 100 <= len(kept) < 300
        await served.ask("POST", "/v1/trainers/run-here-2/report", {"epoch": 1, "events": [events[0]]})
        assert served.service.ledger.events(0, 10_000)[-1]["trainer"] == "run-here-2", "others are kept"
    assert len([record for record in caplog.records if "drivers of ann" in record.getMessage()]) == 1


async def test_a_large_report_lets_others_be_served_in_between(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    events = [{"op": "crash", "at_s": 1, "node": f"n{number}", "text": "x" * 500} for number in range(500)]
    applied: list[int] = []
    real = served.service.apply

    def apply(*told: Any) -> None:
        applied.append(turns)
        real(*told)

    served.service.apply = apply  # type: ignore[method-assign]
    assert (await served.ask("POST", REPORT, {"epoch": 1, "events": events}))[0] == 200
    counting.cancel()
    assert len(applied) > 3
    assert applied == sorted(set(applied)), "the loop has turned between any two"


async def test_who_reads_no_answers_gets_no_more_of_them(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(ApiConnections, "unread_bytes", lambda self, transport: 9 * 2**20)
    for path in ("/v1/status", "/v1/events?after=0", "/v1/trainers/run-here-1/explain"):
        code, answer = await served.ask("GET", path)
        assert (code, "read the answers" in answer["error"]) == (429, True)
    assert (await served.ask("POST", "/v1/trainers", TRAINER))[0] == 200


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bftd.http.body.BODY_S", 0.1)
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(b"POST /v1/trainers HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), STILL_S)).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_on_a_large_cluster_one_status_is_made_for_all_who_ask_within_a_second_and_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FRESH_MOST", 0)
    made: list[bool] = []
    real = status.overview

    def noted(*told: Any) -> dict[str, Any]:
        made.append(threading.current_thread() is threading.main_thread())
        return real(*told)

    monkeypatch.setattr(status, "overview", noted)
    async with serving(tmp_path) as served:
        served.see("n1", "n2")
        answers = await asyncio.gather(*(served.ask("GET", "/v1/status") for _ in range(5)))
        assert len({answer["time_s"] for _, answer in answers}) == 1
        assert made == [False]
        as_user(monkeypatch, "bob")
        assert (await served.ask("GET", "/v1/status"))[0] == 200
        assert made == [False, False], "what another may see is made apart"


async def test_a_question_to_the_ledger_that_takes_too_long_or_answers_too_much_is_ended(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    await served.ask("POST", REPORT, {"epoch": 1, "events": [NOTE | {"text": "x" * 900}] * 10})
    code, whole = await served.ask("GET", "/v1/events?after=0")
    assert code == 200
    monkeypatch.setattr(reader, "ANSWER_BYTES_MOST", 2_000)
    _, part = await served.ask("GET", "/v1/events?after=0")
    assert part["events"] == whole["events"][: len(part["events"])]
    assert 0 < len(part["events"]) < len(whole["events"])
    _, rest = await served.ask("GET", f"/v1/events?after={part['events'][-1]['rowid']}")
    assert rest["events"][0] == whole["events"][len(part["events"])], "who asks on gets all"
    monkeypatch.setattr(reader, "QUERY_S", -1.0)
    monkeypatch.setattr(reader, "_STEPS", 1)
    code, answer = await served.ask("GET", "/v1/events?after=0")
    assert (code, "without an end" in answer["error"]) == (503, True)
