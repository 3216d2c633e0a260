"""Who sees the web page, over its own address and over the unix socket, and what nobody can do there."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.base.errors import ConfigError
from bftd.config.keys import ApiConfig, Config, WebConfig
from bftd.daemon.process import _command
from bftd.http import api
from bftd.http.auth import web as web_gate
from bftd.http.auth.dns_rebinding import is_own_name
from bftd.http.connections import ApiConnections
from bftd.http.handlers import web as web_handlers
from bftd.ledger.file import Ledger
from bftd.ledger.history import query, table
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from bftd.service.service import Service
from bftd.web import page as pages
from tests.bftd.daemon.test_process import write_config
from tests.bftd.http.test_api import TRAINER, as_user, driver_job, secret_file
from tests.support.messages import excerpt, pattern, says
from tests.support.ports import free_port
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef-very-long"


class Looked:
    """A daemon with a web page, and how to ask for it."""

    def __init__(self, service: Service, port: int, path: Path) -> None:
        self.service = service
        self.port = port
        self._socket = path

    async def get(
        self, path: str = "/", method: str = "GET", cookies: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        """One request by TCP from this host: status, text and all the rest."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with aiohttp.ClientSession(cookies=cookies) as session:
            url = f"http://127.0.0.1:{self.port}{path}"
            async with session.request(method, url, headers=headers, allow_redirects=False) as answer:
                return answer.status, await answer.text(), answer

    async def by_socket(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str]:
        """The same over the unix socket."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connector = aiohttp.UnixConnector(str(self._socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://localhost{path}", headers=headers, json={}) as answer,
        ):
            return answer.status, await answer.text()


@asynccontextmanager
async def looked(tmp_path: Path, token: str = "", host: str = "127.0.0.1") -> AsyncIterator[Looked]:
    port = free_port()
    file = str(secret_file(tmp_path / "token", token + "\n")) if token else ""
    configuration = Config(web=WebConfig(f"{host}:{port}", file))
    ledger = Ledger(tmp_path / "ledger")
    service = Service(configuration, ledger, lambda job_ids: None)
    runner = await api.listen(service, ApiConfig(str(tmp_path / "socket")))
    try:
        yield Looked(service, port, tmp_path / "socket")
    finally:
        service.stop()
        await runner.cleanup()
        ledger.close()


@pytest.fixture
def served(tmp_path: Path) -> AbstractAsyncContextManager[Looked]:
    return looked(tmp_path)


async def test_the_page_is_served_on_its_address_and_on_the_socket(served: Looked) -> None:
    status, text, answer = await served.get(Accept_Encoding="gzip")
    assert (status, answer.content_type, answer.headers["Content-Encoding"]) == (200, "text/html", "gzip")
    assert text.startswith("<!doctype html>")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    status, text = await served.by_socket()
    assert (status, text[:15]) == (200, "<!doctype html>")
    status, text, answer = await served.get("/", "HEAD")
    assert (status, text) == (200, "")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "POST", 405),
        ("/", "PUT", 405),
        ("/v1/pause", "POST", 405),
        ("/v1/tune", "DELETE", 405),
        ("/v1/status", "GET", 404),
        ("/v1/events", "GET", 404),
        ("/v1/trainers/1/leases", "GET", 404),
    ],
)
async def test_nothing_but_the_page_is_on_its_address_and_nothing_there_changes_anything(
    path: str, method: str, status: int, tmp_path: Path
) -> None:
    async with looked(tmp_path, TOKEN) as served:
        told, text, answer = await served.get(path, method, Authorization=f"Bearer {TOKEN}")
        assert (told, text.count("\n")) == (status, 1)
        assert answer.content_type == "text/html"
        if status == 405:
            assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:6821"},
        {"Host": "127.0.0.1.evil.example"},
        {"X_Forwarded_For": "10.0.0.9"},
        {"Forwarded": "for=10.0.0.9"},
        {"Via": "1.1 proxy"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}\xe9"},
        {"Authorization": "Basic YTpi"},
    ],
)
async def test_a_stranger_gets_one_line_that_says_what_to_do(headers: dict[str, str], tmp_path: Path) -> None:
    async with looked(tmp_path, TOKEN) as served:
        status, text, _ = await served.get("/", **headers)
        assert (status, text.count("\n")) == (401, 1)
        assert "token" in text
        assert TOKEN not in text


async def test_beyond_localhost_nobody_sees_the_page_without_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing: it only says which address of this host would be used
        except OSError:
            pytest.skip("this host has no address but localhost")
        address = probe.getsockname()[0]
    async with looked(tmp_path, host="0.0.0.0") as served:
        async with aiohttp.ClientSession() as session:
            url = f"http://{address}:{served.port}/"
            for headers in ({}, {"Host": "localhost"}, {"Authorization": f"Bearer {TOKEN}"}):
                async with session.get(url, headers=headers) as answer:
                    assert answer.status == 401
                    assert "set [web] token_file" in await answer.text() or headers
        assert (await served.get())[0] == 200
    assert says(caplog.text, "http.web_gate.all_refused")


async def test_the_token_of_an_address_becomes_a_cookie_that_opens_the_page_without_being_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    async with looked(tmp_path, TOKEN) as served:
        elsewhere = {"Host": "bftd.site.example"}
        assert (await served.get(f"/?token={TOKEN}x", **elsewhere))[0] == 401
        status, _, answer = await served.get(f"/?token={TOKEN}&hours=6", **elsewhere)
        assert (status, answer.headers["Location"]) == (303, "/?hours=6")
        (cookie,) = answer.cookies.values()
        assert cookie["httponly"]
        assert cookie["samesite"] == "Lax"
        assert TOKEN not in cookie.value
        shown = {cookie.key: cookie.value}
        assert (await served.get("/", cookies=shown, **elsewhere))[0] == 200
        until, _, proof = cookie.value.partition(".")
        for wrong in (f"{int(until) + 1}.{proof}", f"{until}.{proof[::-1]}", until, "", "x.y", f"{'9' * 5000}.{proof}"):
            assert (await served.get("/", cookies={cookie.key: wrong}, **elsewhere))[0] in (401, 400)
        monkeypatch.setattr(web_gate, "COOKIE_S", -1)
        status, _, answer = await served.get(f"/?token={TOKEN}", **elsewhere)
        (old,) = answer.cookies.values()
        assert (await served.get("/", cookies={old.key: old.value}, **elsewhere))[0] == 401
    assert TOKEN not in caplog.text


async def test_a_redirect_never_leads_to_another_site(tmp_path: Path) -> None:
    async with looked(tmp_path, TOKEN) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            f"GET //evil.example/?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = (await reader.read()).decode()
        writer.close()
        found = re.search(r"(?im)^location: (.*?)\r?$", answer)
        assert found is None or re.match(r"/(?!/)", found[1]), answer


async def test_a_web_site_cannot_use_a_socket_that_ssh_has_led_to_a_desktop(served: Looked) -> None:
    for headers in (
        {"Host": "evil.example:8080"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        for path, method in (("/v1/pause", "POST"), ("/v1/status", "GET"), ("/", "GET")):
            status, _ = await served.by_socket(path, method, **headers)
            assert status == 403, (headers, path)
    assert not served.service.state.pauses
    assert (await served.by_socket("/", Sec_Fetch_Site="same-origin", Host="localhost:8080"))[0] == 200


async def test_who_has_no_name_sees_no_names_where_slurm_hides_them_and_who_has_the_token_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurm_plugin.read.types import Snapshot
    from tests.bftd.builders import node

    as_user(monkeypatch, "ann")
    async with looked(tmp_path, TOKEN) as served:
        jobs = (driver_job("41", "ann"),)
        for _ in range(2):
            served.service.observe(Snapshot(served.service.now(), {"n1": node("n1")}, jobs, ()))
        connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with aiohttp.ClientSession(connector=connector) as session:
            body = TRAINER | {"id": "41", "name": "<b>secret-name", "user": "ann"}
            async with session.post("http://daemon/v1/trainers", json=body) as answer:
                assert answer.status == 200
        served.service.private = True
        hidden, seen = (await served.get())[1], (await served.get("/", Authorization=f"Bearer {TOKEN}"))[1]
        own = (await served.by_socket())[1]
        assert "secret-name" not in hidden
        assert not re.search(r"\bann\b", hidden)
        for page in (seen, own):
            assert "&lt;b&gt;secret-name" in page
            assert "<b>secret-name" not in page


async def registered(served: Looked, tmp_path: Path) -> None:
    """A trainer of ann's that has n1 and n2, and a note of its driver."""
    from slurm_plugin.read.types import Snapshot
    from tests.bftd.builders import node

    service = served.service
    connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
    async with aiohttp.ClientSession(connector=connector) as session:
        body = TRAINER | {"id": "41", "name": "<b>train-a", "user": "ann"}
        jobs = (driver_job("41", "ann"),)
        service.observe(Snapshot(service.now(), {}, jobs, ()))
        async with session.post("http://daemon/v1/trainers", json=body) as answer:
            assert answer.status == 200
        for _ in range(2):
            service.observe(Snapshot(service.now(), {name: node(name) for name in ("n1", "n2")}, jobs, ()))
        at = {"at_s": service.now()}
        lease = next(item for item in service.state.leases.values() if item.node == "n1")
        events = [
            {"op": "lease", "id": lease.id, "state": "placed", "job_id": "71"} | at,
            {"op": "note", "text": "a word of the driver"} | at,
        ]
        async with session.post("http://daemon/v1/trainers/41/report", json={"epoch": 1, "events": events}) as answer:
            assert answer.status == 200, await answer.text()


async def test_the_pages_of_a_trainer_and_a_node_tell_what_their_endpoints_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, "ann")
    async with looked(tmp_path) as served:
        await registered(served, tmp_path)
        _, main = await served.by_socket()
        assert 'href="/trainers/41"' in main
        assert 'href="/nodes/n1"' in main
        status, trainer = await served.by_socket("/trainers/41")
        assert status == 200
        assert "&lt;b&gt;train-a" in trainer
        assert "<b>train-a" not in trainer
        assert 'href="/nodes/n1"' in trainer
        assert "a word of the driver" in trainer.partition("id=noted")[2].partition("id=decisions")[0]
        assert says(trainer.partition("id=decisions")[2], "core.sentences.starts", count="2 nodes", nodes="n[1-2]")
        status, node = await served.by_socket("/nodes/n1")
        assert status == 200
        assert 'href="/trainers/41"' in node
        assert says(node.partition("id=leases")[2], "core.sentences.starts", count="2 nodes", nodes="n[1-2]")


async def test_who_has_no_name_sees_no_more_of_a_trainer_or_a_node_than_on_the_main_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, "ann")
    async with looked(tmp_path, TOKEN) as served:
        await registered(served, tmp_path)
        main = (await served.get())[1]
        for path in ("/trainers/41", "/nodes/n1"):
            status, text, answer = await served.get(path)
            assert (status, answer.headers["Content-Security-Policy"]) == (200, pages.CSP)
            assert "id=leases" not in text
            assert "id=noted" not in text
            assert "Checkpoint" not in text
            said = re.findall(r"<li><time>[^<]*</time>([^<]*)", text)
            assert all(line in main for line in said)
            seen = (await served.get(path, Authorization=f"Bearer {TOKEN}"))[1]
            assert "id=leases" in seen or "id=noted" in seen


async def test_where_slurm_hides_jobs_the_page_of_anothers_trainer_is_not_there_and_that_of_a_node_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, "ann")
    async with looked(tmp_path, TOKEN) as served:
        await registered(served, tmp_path)
        served.service.private = True
        as_user(monkeypatch, "bob")
        for ask in (served.by_socket, served.get):
            for path in ("/trainers/41", "/trainers/42"):
                status, text, *_ = await ask(path)
                assert status == 404
                assert says(text, "web.details.no_trainer", trainer=path[-2:])
            status, text, *_ = await ask("/nodes/n1")
            assert status == 200
            assert not re.search(r"train-a|\bann\b|/trainers/", text)
            assert "(private)" in text
            assert (await ask("/nodes/n9"))[0] == 404
        as_user(monkeypatch, "ann")
        assert "train-a" in (await served.by_socket("/trainers/41"))[1]
        assert "train-a" in (await served.get("/nodes/n1", Authorization=f"Bearer {TOKEN}"))[1]


async def test_a_page_of_a_trainer_costs_as_much_as_its_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bftd.http.rate_limit.BURST", 45.0)
    monkeypatch.setattr("bftd.http.rate_limit.UNITS_PER_S", 0.001)
    monkeypatch.setattr(web_gate, "PUT_OFF_S", 0.0)
    async with looked(tmp_path) as served:
        assert [(await served.get(path))[0] for path in ("/nodes/n1", "/trainers/1", "/nodes/n1")] == [404, 404, 429]


async def test_regression_charts_made_for_the_token_are_not_those_of_who_has_no_name(tmp_path: Path) -> None:
    async with looked(tmp_path, TOKEN) as served:
        now_s = int(time.time())
        points = (TrainerRecord("41", 2.0, 2.0, 5.0, 10, 100.0, 300.0, 1.0),)
        records = [PoolRecord(now_s - 60 * ago, 60, {"leased": 2.0}, 9.0, 9.0, 9.0, points) for ago in range(50, 0, -1)]
        served.service.ledger.write(
            lambda db: table.add(db, records, [TrainerIdentity("41", "secret-name", "ann", {})])
        )
        served.service.private = True
        seen = (await served.get("/?hours=1", Authorization=f"Bearer {TOKEN}"))[1]
        hidden = (await served.get("/?hours=1"))[1]
        assert "secret-name" in seen
        assert "secret-name" not in hidden
        assert "(private)" in hidden


async def test_a_page_of_more_trainers_than_an_answer_holds_is_coarser_and_no_alarm(
    monkeypatch: pytest.MonkeyPatch, served: Looked
) -> None:
    now_s = int(time.time())
    points = tuple(TrainerRecord(str(item), 2.0, 2.0, 5.0, 10, 100.0, 300.0, 1.0) for item in range(8))
    records = [PoolRecord(now_s - 60 * ago, 60, {"leased": 16.0}, 9.0, 9.0, 9.0, points) for ago in range(50, 0, -1)]
    names = [TrainerIdentity(str(item), f"study-{item}", "ann", {}) for item in range(8)]
    served.service.ledger.write(lambda db: table.add(db, records, names))
    monkeypatch.setattr(query, "TRAINERS_MOST", 200)
    _, page, _ = await served.get("/?hours=1")
    assert not says(page, "web.sections.no_history")
    assert "study-0" in page


async def test_who_asks_again_before_a_page_is_made_waits_for_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, made = threading.Event(), []
    came, all_came = itertools.count(1), asyncio.Event()
    answer = web_handlers.Pages.answer

    async def counted(*asked: Any) -> web_handlers.SentPage:
        if next(came) == 5:
            all_came.set()
        return await answer(*asked)

    def slowly(*_: object) -> web_handlers.SentPage:
        made.append(go_on.wait(10.0))
        return web_handlers.SentPage(b"page", b"")

    monkeypatch.setattr(web_handlers, "KEPT_S", 0.0)
    monkeypatch.setattr(web_handlers, "_made", slowly)
    monkeypatch.setattr(web_handlers.Pages, "answer", counted)
    async with looked(tmp_path) as served:

        async def ask() -> str:
            return (await served.get("/?hours=1", Accept_Encoding="identity"))[1]

        asked = [asyncio.create_task(ask()) for _ in range(5)]
        await asyncio.wait_for(all_came.wait(), STILL_S)
        go_on.set()
        assert await asyncio.gather(*asked) == ["page"] * 5
        assert len(made) == 1


async def test_an_address_that_is_taken_ends_the_start_in_one_line(tmp_path: Path) -> None:
    async def start(port: int) -> None:
        configuration = Config(web=WebConfig(f"127.0.0.1:{port}"))
        ledger = Ledger(tmp_path / "other")
        service = Service(configuration, ledger, lambda job_ids: None)
        try:
            with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*\[web\] listen$") as told:
                await api.listen(service, ApiConfig(str(tmp_path / "other-socket")))
            assert "\n" not in str(told.value)
        finally:
            service.stop()
            ledger.close()

    async with looked(tmp_path) as served:
        await start(served.port)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("", 0o600, "is empty"),
        ("short", 0o600, "at least 16 characters"),
        (TOKEN, 0o604, excerpt("http.gate.token_open")),
        (None, 0, "cannot read"),
    ],
)
def test_a_token_file_that_is_no_secret_ends_the_start_in_one_line(
    text: str | None, mode: int, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=r"\[web\] token_file .*") as told:
        web_gate.WebGate(WebConfig("127.0.0.1:1", str(file)), ApiConnections())
    assert said in str(told.value)
    assert "\n" not in str(told.value)
    path = write_config(tmp_path, f'[web]\nlisten = "127.0.0.1:1"\ntoken_file = "{file}"\n')
    checked = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert str(checked.exception) == str(told.value), "before the restart"


async def test_whoever_asks_too_much_is_told_to_wait_and_the_token_is_not_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bftd.http.rate_limit.BURST", 20.0)
    monkeypatch.setattr("bftd.http.rate_limit.UNITS_PER_S", 0.001)
    monkeypatch.setattr(web_gate, "PUT_OFF_S", 0.0)
    async with looked(tmp_path, TOKEN) as served:
        told = [(await served.get())[0] for _ in range(6)]
        assert told[0] == 200
        assert told[-1] == 429
        assert (await served.get("/", Authorization=f"Bearer {TOKEN}"))[0] == 200


@example("localhost")
@example("localhost:8080")
@example("127.0.0.1:6821")
@example("[::1]:6821")
@example("login1:6821")
@given(st.sampled_from(["daemon", "localhost", "127.0.0.5", "[::1]", "a.localhost"]).map(lambda name: f"{name}:80"))
def test_own_names_are_those_that_no_site_can_have(host: str) -> None:
    assert is_own_name(host)


@given(st.from_regex(r"\A[a-z0-9-]{1,20}(\.[a-z][a-z0-9-]{0,10}){1,3}\.?(:[0-9]{1,5})?\Z"))
@example("localhost:80.evil.example")
@example("10.0.0.1")
@example("[fe80::1]:80")
@example("")
def test_names_of_sites_are_not_own(host: str) -> None:
    if not host.rstrip(".").partition(":")[0].rstrip(".").endswith(".localhost"):
        assert not is_own_name(host)


def test_the_config_of_the_page_is_checked_for_its_form() -> None:
    from bftd import config_file

    for listen in ("6821", "localhost", "localhost:", "localhost:0", "localhost:70000", ":6821"):
        with pytest.raises(ConfigError, match=pattern("bftd.config.listen_malformed")):
            config_file.parse(f"[web]\nlisten = '{listen}'\n")
    with pytest.raises(ConfigError, match=pattern("bftd.config.listen_is_tcp")):
        config_file.parse("[web]\nlisten = 'h:1'\n[api]\ntcp = 'h:1'\n")
    assert dataclasses.astuple(config_file.parse("[web]\nlisten = '[::1]:6821'\n").web) == ("[::1]:6821", "")
