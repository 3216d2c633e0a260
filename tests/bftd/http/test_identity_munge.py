"""Callers on other hosts: munge credentials over real TCP, with real mungeds, for the daemon and both our clients."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web

from bftd.api_client import ApiClient
from bftd.base.errors import ApiError, ConfigError, DaemonUnreachable
from bftd.config.keys import ApiConfig, Config, DaemonConfig
from bftd.credentials import munge, proofs
from bftd.credentials.munge import MungeError
from bftd.credentials.proofs import RequestCredential
from bftd.http import api
from bftd.http.auth.caller import Caller, Callers
from bftd.http.auth.gate import OF_AN_ADDRESS_MOST
from bftd.http.auth.munge import MungeGate
from bftd.http.rate_limit import Budgets
from bftd.ledger.file import Ledger
from bftd.protocol.lease import Leases, LeaseView
from bftd.protocol.registration import Registration, Welcome
from bftd.protocol.reports import NoteReport
from bftd.service.service import Service
from elastic.base.errors import DaemonError, UsageError
from elastic.driver import daemon_link as daemons
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.transport import Transport
from slurm_plugin.sandbox import munged
from tests import program
from tests.bftd.http.test_api import TRAINER
from tests.support.messages import pattern, says, wording
from tests.support.ports import free_port
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
ME = getpass.getuser()
NOBODY = 65534


@contextmanager
def a_munged() -> Iterator[tuple[str, int]]:
    """The socket and the pid of a munged with a key of its own."""
    root = Path(tempfile.mkdtemp(prefix="bft-munge-"))
    root.chmod(0o755)
    pid = munged.start(root)
    try:
        yield str(munged.socket_of(root)), pid
    finally:
        process = psutil.Process(pid)
        process.terminate()
        process.wait(10)
        shutil.rmtree(root)


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    return free_port()


@pytest.fixture(scope="module")
def munge_socket() -> Iterator[str]:
    with a_munged() as (path, _):
        yield path


class Served:
    """A daemon's API on a socket and on TCP."""

    def __init__(self, service: Service, session: aiohttp.ClientSession, port: int, socket: str, path: Path) -> None:
        self.service = service
        self.tcp = f"127.0.0.1:{port}"
        self.address = f"{ME}@{self.tcp}"
        self.munge_socket = socket
        self.unix = str(path)
        self._session = session

    def credential(self, method: str, target: str, body: bytes = b"", **options: Any) -> str:
        """A right credential, or one that differs in what is given."""
        said = RequestCredential(
            options.pop("nonce", os.urandom(16).hex()), self.tcp, method, target, proofs.digest(body)
        )
        said = replace(said, **{key: options.pop(key) for key in ("address",) if key in options})
        return munge.encode(said.payload(), **{"to_uid": os.getuid(), "socket": self.munge_socket, **options})

    async def ask(self, method: str, target: str, credential: str | None, body: bytes = b"") -> tuple[int, str]:
        """One request with a credential of the test's: the status and the error told, "" where there is none."""
        headers = {} if credential is None else {"Authorization": f"Munge {credential}"}
        async with self._session.request(method, f"http://{self.tcp}{target}", data=body, headers=headers) as answer:
            return answer.status, (await answer.json()).get("error", "")


@asynccontextmanager
async def serving(folder: Path, port: int, socket: str) -> AsyncIterator[Served]:
    ledger = Ledger(folder / "ledger")
    service = Service(Config(daemon=DaemonConfig(user=ME)), ledger, lambda job_ids: None)
    config = ApiConfig(str(folder / "socket"), f"127.0.0.1:{port}", munge_socket=socket)
    runner = await api.listen(service, config)
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(service, session, port, socket, folder / "socket")
    finally:
        service.stop()
        await runner.cleanup()
        ledger.close()


@pytest.fixture
def served(tmp_path: Path, port: int, munge_socket: str) -> AbstractAsyncContextManager[Served]:
    return serving(tmp_path, port, munge_socket)


async def test_bft_and_a_driver_are_known_by_munge_and_believe_the_daemon(served: Served) -> None:
    client = ApiClient(tcp=served.address, munge_socket=served.munge_socket)
    assert (await asyncio.to_thread(client.status))["trainers"] == []
    leases: list[Any] = []
    registration = Registration.from_json(TRAINER | {"user": ME})
    link = DaemonLink(
        served.address, lambda: registration, leases.append, lambda: None, print, munge_socket=served.munge_socket
    )
    running = asyncio.create_task(link.run())
    while not leases:
        await asyncio.sleep(0.01)
    link.report(NoteReport(1.0, "über"))
    while not (await asyncio.to_thread(client.events, 0)):
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert served.service.state.trainers["run-here-1"].user == ME
    with pytest.raises(ApiError) as refused:
        await asyncio.to_thread(client.tune)
    assert refused.value.status == 400, "a refusal is proved as well"


TARGET = "/v1/trainers/run-here-1/leases?epoch=1"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"target": "/v1/trainers/run-here-2/leases?epoch=1"},
            wording(
                "http.munge_gate.other_request",
                method="GET",
                target="/v1/trainers/run-here-2/leases?epoch=1",
                method2="GET",
                target2=TARGET,
            ),
        ),
        (
            {"target": "/v1/trainers/run-here-1/leases?epoch=2"},
            wording(
                "http.munge_gate.other_request",
                method="GET",
                target="/v1/trainers/run-here-1/leases?epoch=2",
                method2="GET",
                target2=TARGET,
            ),
        ),
        (
            {"method": "POST"},
            wording("http.munge_gate.other_request", method="POST", target=TARGET, method2="GET", target2=TARGET),
        ),
        ({"body": b"{}"}, wording("http.munge_gate.other_body")),
        (
            {"address": "127.0.0.1:1"},
            wording("http.munge_gate.other_address", said="127.0.0.1:1", address="127.0.0.1:"),
        ),
        ({"to_uid": NOBODY}, wording("protocol.munge.other_user")),
        ({"ttl_s": 3000}, wording("http.munge_gate.too_long_good", ttl_s=3000, TTL_S=60)),
    ],
)
async def test_a_credential_is_good_for_its_own_request_to_its_own_daemon_only(
    options: dict[str, Any], told: str, served: Served
) -> None:
    right = {"method": "GET", "target": TARGET}
    assert (await served.ask("GET", TARGET, served.credential(**right)))[0] == 404, "this one got through"
    code, error = await served.ask("GET", TARGET, served.credential(**(right | options)))
    assert code == 401
    assert told in error


async def test_a_request_sent_twice_is_refused_the_second_time(served: Served) -> None:
    seen = served.credential("GET", "/v1/status")
    assert await served.ask("GET", "/v1/status", seen) == (200, "")
    code, error = await served.ask("GET", "/v1/status", seen)
    assert (code, error) == (401, wording("http.munge_gate.used_before"))
    assert await served.ask("GET", "/v1/status", served.credential("GET", "/v1/status")) == (200, "")


def test_a_replay_is_noticed_even_where_munged_has_forgotten_it(munge_socket: str) -> None:
    gate = MungeGate(munge_socket, ME)
    said = RequestCredential("5a17", "127.0.0.1:1", "GET", "/", proofs.digest(b""))
    gate.accept(1000, said, b"")
    with pytest.raises(MungeError, match="was used before"):
        gate.accept(1000, said, b"")


async def test_a_credential_made_with_another_key_is_refused_and_what_it_asked_for_not_done(served: Served) -> None:
    with a_munged() as (forger, _):
        body = json.dumps({"pj_max": 1}).encode()
        code, error = await served.ask(
            "POST", "/v1/tune", served.credential("POST", "/v1/tune", body, socket=forger), body
        )
        assert code == 401
        assert says(error, "protocol.munge.invalid")
        assert served.service.state.settings.decide.pj_max != 1
        with pytest.raises(
            DaemonUnreachable,
            match=pattern("http.client.not_believed") + ".*it says: " + pattern("protocol.munge.invalid"),
        ):
            await asyncio.to_thread(ApiClient(tcp=served.address, munge_socket=forger).status)


async def test_an_old_credential_is_refused(served: Served) -> None:
    old = served.credential("GET", "/v1/status", ttl_s=1)
    await asyncio.sleep(2.1)  # munged's clock is the host's, in whole seconds
    code, error = await served.ask("GET", "/v1/status", old)
    assert code == 401
    assert says(error, "protocol.munge.expired")


async def test_who_shows_no_credential_or_one_made_for_something_else_is_refused(served: Served) -> None:
    for shown in (None, "", "MUNGE:nonsense:", "x" * 4000, munge.encode(b"", socket=served.munge_socket)):
        code, error = await served.ask("GET", "/v1/status", shown)
        assert code == 401, shown
        assert "credential" in error
    with pytest.raises(ApiError, match=pattern("http.gate.no_credential")):
        await asyncio.to_thread(ApiClient(tcp=served.tcp, token="guessed").status)


async def test_S3_a_munged_that_hangs_holds_up_nobody_on_the_daemons_own_host(tmp_path: Path, port: int) -> None:
    with a_munged() as (socket, pid):
        async with serving(tmp_path, port, socket) as served:
            right = served.credential("GET", "/v1/status")
            os.kill(pid, signal.SIGSTOP)
            try:
                waiting = asyncio.create_task(served.ask("GET", "/v1/status", right))
                await asyncio.sleep(0.1)
                for _ in range(5):
                    await asyncio.wait_for(asyncio.to_thread(ApiClient(served.unix).status), STILL_S)
                assert not waiting.done()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert (await waiting)[0] in (200, 503)


async def test_regression_strangers_with_a_munged_that_hangs_held_up_callers_on_the_daemons_own_host(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Callers, "known", lambda self, uid: None)  # every name is looked up anew
    with a_munged() as (socket, pid):
        async with serving(tmp_path, port, socket) as served:
            credentials_ = [served.credential("GET", "/v1/status") for _ in range(OF_AN_ADDRESS_MOST + 8)]
            os.kill(pid, signal.SIGSTOP)
            try:
                strangers = [asyncio.create_task(served.ask("GET", "/v1/status", shown)) for shown in credentials_]
                done, _ = await asyncio.wait(strangers, timeout=STILL_S, return_when=asyncio.FIRST_COMPLETED)
                assert says(done.pop().result()[1], "http.gate.many_of_one", stranger="127.0.0.1")
                await asyncio.to_thread(ApiClient(served.unix).status)
                assert not all(stranger.done() for stranger in strangers), "it waited for munged, as they do"
            finally:
                os.kill(pid, signal.SIGCONT)
            codes = [code for code, _ in await asyncio.gather(*strangers)]
            assert set(codes) <= {200, 503}


async def test_regression_numbers_of_any_length_were_remembered(served: Served) -> None:
    for nonce in ("x" * 4000, "", "F" * 32, "0" * 31, "0" * 33):
        code, error = await served.ask("GET", TARGET, served.credential("GET", TARGET, nonce=nonce))
        assert (code, error) == (401, wording("http.munge_gate.number_malformed"))
    assert (await served.ask("GET", TARGET, served.credential("GET", TARGET, nonce="0" * 32)))[0] == 404


async def test_nothing_is_remembered_of_a_request_beyond_its_users_budget(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(MungeGate, "accept", lambda self, uid, said, body: taken.append(said.nonce))
    monkeypatch.setattr(Callers, "known", lambda self, uid: Caller("eve", False, uid))
    monkeypatch.setattr(Budgets, "spend", lambda self, uid, units, now_s: False)
    monkeypatch.setattr("bftd.http.auth.gate.PUT_OFF_S", 0.01)
    code, error = await served.ask("GET", "/v1/status", served.credential("GET", "/v1/status"))
    assert (code, error) == (429, wording("http.gate.over_budget", user="eve"))
    assert taken == []


# -- who pretends to be the daemon ---


@asynccontextmanager
async def an_impostor(port: int, answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


WELCOME = Welcome(1, 1.0, Leases(3, 20.0, (LeaseView("n1.1", "n1", "granted", False, 3600.0),)))


def proof_by_nobody(said: RequestCredential, status: int, body: bytes, socket: str) -> str:
    """The header that nobody's own process can make for an answer."""
    code = (
        "import os, sys\nfrom bftd.credentials import munge\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"print(munge.encode(bytes.fromhex(sys.argv[1]), to_uid={os.getuid()}, socket=sys.argv[2]))"
    )
    payload = proofs.answer_payload(said.nonce, status, body).hex()
    environ = {**os.environ, "PYTHONPATH": program.python_path()}
    argv = [sys.executable, "-c", code, payload, socket]
    done = subprocess.run(argv, cwd="/", env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return f"Munge {done.stdout.strip()}"


@pytest.mark.parametrize("way", ["no proof", "another user's proof", "an old proof", "a changed body"])
async def test_what_is_not_the_daemon_hands_out_no_leases(
    way: str, port: int, munge_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "another user's proof" and os.getuid():
        pytest.skip("needs root to act as another user")
    monkeypatch.setattr(daemons, "DAEMON_RETRY_S", 0.01)
    body = json.dumps(WELCOME.to_json()).encode()
    old = munge.encode(proofs.answer_payload("0" * 32, 200, body), to_uid=os.getuid(), socket=munge_socket)
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        said = RequestCredential.of(munge.decode(request.headers["Authorization"][6:], socket=munge_socket).payload)
        if way == "no proof":
            return web.Response(body=body)
        if way == "another user's proof":
            shown = await asyncio.to_thread(proof_by_nobody, said, 200, body, munge_socket)
        elif way == "an old proof":
            shown = f"Munge {old}"
        else:
            made = proofs.answer_payload(said.nonce, 200, b"{}")
            shown = f"Munge {munge.encode(made, to_uid=os.getuid(), socket=munge_socket)}"
        return web.Response(body=body, headers={proofs.ANSWER_HEADER: shown})

    async with an_impostor(port, answer):
        address, lines = f"{ME}@127.0.0.1:{port}", list[str]()

        def take(leases: object) -> None:
            pytest.fail("believed an impostor")

        registration = Registration.from_json(TRAINER)
        link = DaemonLink(address, lambda: registration, take, lambda: None, lines.append, munge_socket=munge_socket)
        running = asyncio.create_task(link.run())
        while asked < 2 or not lines:
            await asyncio.sleep(0.01)
            assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert "is not believed" in lines[0]
        with pytest.raises(DaemonUnreachable, match="is not believed"):
            await asyncio.to_thread(ApiClient(tcp=address, munge_socket=munge_socket).status)


async def test_what_passes_a_users_request_on_to_the_daemon_gets_nothing_done_in_his_name(served: Served) -> None:
    statuses = []

    async def relay(request: web.Request) -> web.Response:
        shown = {"Authorization": request.headers["Authorization"]}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, f"http://{served.tcp}{request.raw_path}", data=await request.read(), headers=shown
            ) as answer,
        ):
            statuses.append(answer.status)
            return web.Response(body=await answer.read(), status=answer.status, headers=answer.headers)

    beside = free_port()
    async with an_impostor(beside, relay):
        client = ApiClient(tcp=f"{ME}@127.0.0.1:{beside}", munge_socket=served.munge_socket)
        with pytest.raises(DaemonUnreachable, match=pattern("http.munge_gate.other_address")):
            await asyncio.to_thread(client.tune, pj_max=1)
    assert statuses == [401]
    assert served.service.state.settings.decide.pj_max != 1


# -- what is told when munge does not work ---


def test_a_daemon_whose_munge_does_not_work_does_not_start(tmp_path: Path, munge_socket: str, monkeypatch) -> None:
    other = pwd.getpwuid(NOBODY).pw_name if os.getuid() != NOBODY else "root"
    with pytest.raises(ConfigError, match=pattern("http.munge_gate.other_daemon", user=other, uid=os.geteuid())):
        MungeGate(munge_socket, other)
    with pytest.raises(ConfigError, match=pattern("protocol.munge.no_answer", where=tmp_path / "none")):
        MungeGate(str(tmp_path / "none"), ME)
    monkeypatch.setattr(munge, "_LIBRARY", "libnosuchmunge.so.2")
    munge._library.cache_clear()
    try:
        with pytest.raises(ConfigError, match=pattern("protocol.munge.no_library", library="libnosuchmunge.so.2")):
            MungeGate(munge_socket, ME)
    finally:
        munge._library.cache_clear()


async def test_clients_tell_in_one_line_what_is_missing_on_their_host(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigError, match=pattern("protocol.credentials.no_such_user", user="nosuchuser")):
        ApiClient(tcp="nosuchuser@localhost:6820").status()
    with pytest.raises(UsageError, match=pattern("protocol.credentials.no_such_user", user="nosuchuser")):
        Transport("nosuchuser@localhost:6820")
    with pytest.raises(UsageError, match="must be"):
        Transport("nowhere")

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({})

    async with an_impostor(port, answer):
        address = f"{ME}@127.0.0.1:{port}"
        transport = Transport(address, munge_socket=str(tmp_path / "none"))
        async with transport.session(5.0) as session:
            with pytest.raises(DaemonError, match=pattern("protocol.munge.no_answer", where=tmp_path / "none")):
                await transport.request(session, "GET", "/v1/status", None)
        with pytest.raises(ConfigError, match=pattern("protocol.munge.no_answer", where=tmp_path / "none")):
            await asyncio.to_thread(ApiClient(tcp=address, munge_socket=str(tmp_path / "none")).status)


def test_credentials_of_both_sides_can_be_opened_by_the_other_sides_uid_only(munge_socket: str) -> None:
    other = pwd.getpwuid(NOBODY).pw_name
    _, headers = proofs.CallerCredential(other, munge_socket).request("127.0.0.1:1", "GET", "/", b"")
    said = RequestCredential("5a17", "127.0.0.1:1", "GET", "/", proofs.digest(b""))
    answer = MungeGate(munge_socket, ME).sign(NOBODY, said, 200, b"{}")
    for shown in (headers["Authorization"], answer["Authentication-Info"]):
        with pytest.raises(MungeError, match=pattern("protocol.munge.other_user")):
            munge.decode(shown.removeprefix("Munge "), socket=munge_socket)


def test_a_credential_opens_to_what_was_put_in(munge_socket: str) -> None:
    before_s = int(time.time()) - 1  # the clock that munged reads goes by ticks of the kernel
    for payload in (b"", b"\0\n", b"x" * 100_000):
        opened = munge.decode(munge.encode(payload, ttl_s=7, socket=munge_socket), socket=munge_socket)
        assert (opened.payload, opened.uid, opened.ttl_s) == (payload, os.getuid(), 7)
        assert before_s <= opened.encoded_s <= time.time()
