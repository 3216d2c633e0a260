"""A stranger at Horovod's rendezvous: nothing of his is unpickled, nothing there is worth reading."""

from __future__ import annotations

import os
import pickle
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.horovod]
KEY = "a key of this run"
WORKER = "n1.3.0:0"


class Driver:
    """Horovod's driver: keeps who was announced."""

    def __init__(self) -> None:
        self.announced: list[tuple[Any, ...]] = []

    def register_worker_server(self, *told: Any) -> None:
        self.announced.append(told)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def guests() -> Any:
    from elastic.backends.horovod.rendezvous import AllowedAddresses

    return AllowedAddresses()


@pytest.fixture
def url(driver: Driver, guests: Any) -> Iterator[str]:
    """A rendezvous as an elastic run starts it."""
    from elastic.backends.horovod.rendezvous import Rendezvous, handler_for

    guests.replace(["127.0.0.1"])
    server = Rendezvous(0)
    port = server.start(handler_for(driver, KEY, guests))
    server.init([])
    yield f"http://127.0.0.1:{port}"
    server.stop()


def put(url: str, data: bytes, **headers: str) -> int:
    try:
        with urlopen(Request(url, data=data, method="PUT", headers=headers), timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def ask(url: str, method: str, source: str = "127.0.0.1") -> None:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=20, source_address=(source, 0))
    with closing(connection) as stranger:
        stranger.request(method, "/global/0", body=b"another")
        stranger.getresponse()


class Harmful:
    """A pickle that runs a program."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_strangers_pickle_is_not_run_and_his_announcement_not_taken(url: str, driver: Driver, tmp_path: Path) -> None:
    from horovod.runner.common.util import codec

    from elastic.backends.horovod.notification_address import announcement

    proof = tmp_path / "it ran"
    addresses = {"lo": [("127.0.0.1", 1)]}
    for data in (
        codec.dumps_base64(Harmful(proof), to_ascii=False),
        pickle.dumps(Harmful(proof)),
        announcement("another key", WORKER, addresses),
        announcement(KEY, "n2.1.0:0", addresses),
        b"0" * 64 + b" {}",
        b"",
    ):
        put(f"{url}/worker_addresses/{WORKER}", data)
    put(f"{url}/worker_addresses/no-colon", announcement(KEY, "no-colon", addresses))
    assert driver.announced == []
    assert not proof.exists()


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
def test_a_workers_announcement_is_taken_and_kept_from_readers_also_where_a_site_has_a_proxy(
    proxy: str, url: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner.elastic.worker import WorkerNotificationClient, WorkerNotificationManager

    from elastic.backends.horovod import notification_address as announcing

    monkeypatch.setattr(WorkerNotificationManager, "init", WorkerNotificationManager.init)
    monkeypatch.setattr(announcing, "_own_key", KEY)
    announcing.mend_worker()
    host, _, port = url.removeprefix("http://").rpartition(":")
    names = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": port, "HOROVOD_GLOO_IFACE": "lo"}
    for name, value in {**names, "HOROVOD_HOSTNAME": "n1.3.0", "HOROVOD_LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    manager = WorkerNotificationManager()
    with monkeypatch.context() as site:
        site.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first use
        site.setenv("http_proxy", proxy)
        for name in ("no_proxy", "NO_PROXY"):
            site.delenv(name, raising=False)
        manager.init()
    heard = []
    manager.register_listener(type("Listener", (), {"on_hosts_updated": lambda _, *told: heard.append(told)})())
    [(name, rank, addresses, key)] = driver.announced
    assert (name, rank) == ("n1.3.0", 0)
    WorkerNotificationClient(addresses, key, 0).notify_hosts_updated(7, 1)
    assert heard == [(7, 1)]
    with pytest.raises(HTTPError):
        urlopen(f"{url}/worker_addresses/{WORKER}", timeout=20)
    manager._service.shutdown()


def test_what_gloo_keeps_there_works_as_ever_within_bounds(url: str) -> None:
    assert put(f"{url}/global/0", b"address") == 200
    with urlopen(f"{url}/global/0", timeout=20) as answer:
        assert answer.read() == b"address"
    assert put(f"{url}/global/0", b"", **{"Content-Length": str(1 << 40)}) == 413
    with urlopen(f"{url}/global/0", timeout=20) as answer:
        assert answer.read() == b"address"


def test_who_comes_from_no_node_of_the_trainers_is_not_heard_at_all(url: str) -> None:
    put(f"{url}/global/0", b"address")

    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises((HTTPException, ConnectionError)):
            ask(url, method, "127.0.0.2")
    with urlopen(f"{url}/global/0", timeout=20) as answer:
        assert answer.read() == b"address"


def test_a_script_that_runs_without_bftd_announces_itself_as_upstream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.elastic.worker import WorkerNotificationManager

    from elastic.backends.horovod import notification_address as announcing

    called: list[object] = []
    monkeypatch.setattr(WorkerNotificationManager, "init", lambda self: called.append(self))
    monkeypatch.setattr(announcing, "_own_key", None)
    announcing.mend_worker()
    announcing.mend_worker()
    WorkerNotificationManager().init()
    assert len(called) == 1


def test_a_node_that_was_given_back_is_heard_no_more(url: str, guests: Any) -> None:
    put(f"{url}/global/0", b"address")
    guests.replace(["10.0.0.1"])
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises((HTTPException, ConnectionError)):
            ask(url, method)
    guests.replace(["10.0.0.1", "127.0.0.1"])
    with urlopen(f"{url}/global/0", timeout=20) as answer:
        assert answer.read() == b"address"


def test_what_no_rank_has_told_yet_is_not_found(url: str) -> None:
    for path in ("/global/7", "/of_nobody/0", "/worker_addresses/n1.1.0:0"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(url + path, timeout=20)
    with pytest.raises(HTTPError):
        urlopen(f"{url}/too/many/words", timeout=20)


def test_addresses_of_many_ranks_arrive_whole_though_a_connection_takes_less_at_once(url: str) -> None:
    addresses = bytes(range(256)) * 4000
    put(f"{url}/global/0", addresses)
    for _ in range(3):
        with urlopen(f"{url}/global/0", timeout=20) as answer:
            assert answer.read() == addresses


def test_a_question_that_comes_in_pieces_is_answered_too(url: str) -> None:
    put(f"{url}/global/0", b"address")
    host, _, port = url[7:].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        slow.sendall(b"GET /glo")
        time.sleep(0.05)
        slow.sendall(b"bal/0 HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while piece := slow.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.0 200 ")
    assert answer.endswith(b"\r\n\r\naddress")


def test_what_gloo_asks_hundreds_of_ranks_for_takes_no_thread_each(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic.backends.horovod.rendezvous import QuickServer

    put(f"{url}/global/0", b"address")
    left: list[object] = []
    monkeypatch.setattr(QuickServer, "process_request", lambda self, *request: left.append(request))
    for _ in range(50):
        with urlopen(f"{url}/global/0", timeout=20) as answer:
            assert answer.read() == b"address"
    assert left == []
