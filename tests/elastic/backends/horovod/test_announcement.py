"""A stranger at Horovod's rendezvous: nothing of his is unpickled, nothing there is worth reading."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytestmark = pytest.mark.horovod
KEY = "a key of this life"
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
def url(driver: Driver) -> Iterator[str]:
    """A rendezvous as a life starts it."""
    from horovod.runner.http.http_server import RendezvousServer

    from elastic.backends.horovod.announcement import handler_for

    server = RendezvousServer(0)
    port = server.start(handler_for(driver, KEY, {"127.0.0.1"}))
    server.init([])
    yield f"http://127.0.0.1:{port}"
    server.stop()


def put(url: str, data: bytes, **headers: str) -> int:
    try:
        with urlopen(Request(url, data=data, method="PUT", headers=headers), timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


class Harmful:
    """A pickle that runs a program."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_strangers_pickle_is_not_run_and_his_announcement_not_taken(url: str, driver: Driver, tmp_path: Path) -> None:
    from horovod.runner.common.util import codec

    from elastic.backends.horovod.announcement import announcement

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


def test_a_workers_announcement_is_taken_and_kept_from_readers(
    url: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horovod.runner.elastic.worker import WorkerNotificationClient, WorkerNotificationManager

    from elastic.backends.horovod.announcement import KEY_NAME, mend_worker

    monkeypatch.setattr(WorkerNotificationManager, "init", WorkerNotificationManager.init)
    mend_worker()
    host, _, port = url.removeprefix("http://").rpartition(":")
    names = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": port, "HOROVOD_GLOO_IFACE": "lo"}
    for name, value in {**names, "HOROVOD_HOSTNAME": "n1.3.0", "HOROVOD_LOCAL_RANK": "0", KEY_NAME: KEY}.items():
        monkeypatch.setenv(name, value)
    manager = WorkerNotificationManager()
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
    port = int(url.rpartition(":")[2])
    put(f"{url}/global/0", b"address")

    def ask(method: str) -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=20, source_address=("127.0.0.2", 0))) as stranger:
            stranger.request(method, "/global/0", body=b"another")
            stranger.getresponse()

    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises((HTTPException, ConnectionError)):
            ask(method)
    with urlopen(f"{url}/global/0", timeout=20) as answer:
        assert answer.read() == b"address"


def test_a_script_that_runs_without_bftd_announces_itself_as_upstream_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.elastic.worker import WorkerNotificationManager

    from elastic.backends.horovod.announcement import KEY_NAME, mend_worker

    called: list[object] = []
    monkeypatch.setattr(WorkerNotificationManager, "init", lambda self: called.append(self))
    monkeypatch.delenv(KEY_NAME, raising=False)
    mend_worker()
    mend_worker()
    WorkerNotificationManager().init()
    assert len(called) == 1
