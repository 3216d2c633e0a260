"""torchrun's store is the trainer's own: no other user of either host, and nobody without the secret, reaches it."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401  (to connect needs it, and another user may not read it)
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic.backends.torchrun.peer_process import owner
from elastic.backends.torchrun.private_store import HiddenStore
from elastic.backends.torchrun.store import leave_hosts_network
from elastic.backends.torchrun.tunnel import Tunnel
from elastic.link.authentication import new_secret
from tests.elastic.fakes import until

pytestmark = pytest.mark.slow

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="another user can be played by root alone")
TIMEOUT = timedelta(seconds=20)
FILES = 64


def as_stranger(act: Callable[[], Any]) -> Any:
    """What `act` returns in a process of another user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setuid(NOBODY)
        try:
            said = act()
        except Exception as error:
            said = type(error).__name__
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = json.loads(file.read() or '"died"')
    os.waitpid(pid, 0)
    return said


# -- whose connection it is ---


def accepted(family: int = socket.AF_INET) -> tuple[socket.socket, socket.socket]:
    """A connection within this host: the near end, and the far one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        far = socket.socket(family)
        far.connect(("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", port))
        return listening.accept()[0], far


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_says_whose_a_connection_is_also_one_of_ipv6s_sockets(family: int) -> None:
    near, far = accepted(family)
    assert owner(near) == os.getuid()
    far.close()
    near.close()


def test_a_connection_that_was_closed_is_nobodys_and_not_roots() -> None:
    near, far = accepted()
    far.sendall(b"take this")
    far.close()
    assert owner(near) is None
    near.close()


@AS_ROOT
def test_the_kernel_tells_another_user_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pid = os.fork()
        if pid == 0:
            os.setuid(NOBODY)
            with socket.create_connection(listening.getsockname()):
                signal.pause()
        near, _ = listening.accept()
        assert owner(near) == NOBODY
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        near.close()


# -- beside the driver ---


@pytest.mark.torch
async def test_the_store_is_hidden_from_every_port_but_its_own(tmp_path: Path) -> None:
    store = HiddenStore()
    await store.open()
    # Any connection that was not made for it: its packets are dropped, so there is not even a refusal.
    with pytest.raises(OSError, match="timed out"):
        socket.create_connection(("127.0.0.1", store._port), timeout=0.3)
    _, writer = await store.connect()
    assert writer.get_extra_info("peername")[1] == store._port
    writer.close()
    store.close()


@AS_ROOT
@pytest.mark.torch
def test_a_user_without_any_rights_has_a_store_that_nobody_else_on_the_host_can_find() -> None:
    import torch.distributed  # noqa: F401  (what runs as the other user may not read it)

    asking, told = os.pipe()
    going_on, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setuid(NOBODY)

        async def serve() -> None:
            store = HiddenStore(alone=leave_hosts_network())
            await store.open()
            _, writer = await store.connect()
            writer.close()
            os.write(told, str(store._port).encode())
            os.read(going_on, 1)

        try:
            asyncio.run(serve())
        except BaseException as error:
            os.write(told, repr(error).encode())
        os._exit(0)
    os.close(told)
    port = os.read(asking, 4096).decode()
    try:
        assert port.isdecimal(), port
        for address in ("127.0.0.1", "127.0.0.2"):
            with pytest.raises(OSError, match=r"refused|timed out"):
                socket.create_connection((address, int(port)), timeout=0.3)
    finally:
        os.write(done, b".")
        os.waitpid(pid, 0)
        for number in (asking, going_on, done):
            os.close(number)


@AS_ROOT
@pytest.mark.torch
async def test_another_user_of_the_drivers_host_cannot_take_the_port_that_the_store_hears(tmp_path: Path) -> None:
    store = HiddenStore()
    await store.open()
    _, writer = await store.connect()
    taken = writer.get_extra_info("sockname")
    for option in (socket.SO_REUSEPORT, socket.SO_REUSEADDR, socket.SO_KEEPALIVE):
        for address in ("127.0.0.1", "127.9.9.9", taken[0], "0.0.0.0"):

            def bind(option: int = option, address: str = address) -> str:
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, option, 1)
                sock.bind((address, taken[1]))
                return "bound"

            assert as_stranger(bind) == "OSError"
    writer.close()
    store.close()


# -- from a node's worker to the store ---


def _few_files() -> None:
    """Far fewer than a user's usual 1024 for far fewer workers."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Way:
    """The store beside the driver and a node's tunnel, both as the processes that they are."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self.store = subprocess.Popen(
            [sys.executable, "-m", "elastic.backends.torchrun.store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_few_files,
        )
        assert self._answer()["op"] == "ready"
        self.tunnel = Tunnel()

    def open(self, generation: int) -> int:
        """Opens a generation's store; the port at which it is found on the driver's host."""
        assert self.store.stdin is not None
        message = {"op": "open", "generation": generation, "secret": self.secret}
        self.store.stdin.write(json.dumps(message).encode() + b"\n")
        self.store.stdin.flush()
        return int(self._answer()["port"])

    def lead(self, generation: int, port: int) -> int:
        """Has the tunnel lead to it; the port on the node."""
        return self.tunnel.open(generation, "127.0.0.1", port)

    def client(self, port: int) -> Any:
        """A worker's connection."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)

    def close(self) -> None:
        if self.tunnel._process is not None:
            self.tunnel._process.kill()
            self.tunnel._process.communicate()
        self.store.kill()
        self.store.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.store.stdout is not None
        answer: dict[str, Any] = json.loads(self.store.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def way() -> Iterator[Way]:
    made = Way()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a node process."""
    if "way" in request.fixturenames:
        monkeypatch.setenv("BFT_SECRET", request.getfixturevalue("way").secret)
        monkeypatch.setenv("BFT_LEASE", "n1.1")


def heard(port: int, said: bytes) -> bytes | None:
    """What is answered to some bytes until the other end hangs up, or says no more; None when it says nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
        answer = b""
        try:
            sock.sendall(said)
            while data := sock.recv(4096):
                answer += data
        except TimeoutError:
            return answer or None
        except ConnectionError:
            pass
        return answer


@pytest.mark.torch
def test_workers_find_in_the_store_what_others_put_there(way: Way) -> None:
    port = way.lead(1, way.open(1))
    one, other = way.client(port), way.client(port)
    one.set("address of rank 0", "n1:4711")
    assert other.get("address of rank 0") == b"n1:4711"
    # More than one message, and more than one piece.
    one.multi_set([str(number) for number in range(256)], ["x" * 4096] * 256)
    assert other.multi_get([str(number) for number in range(256)]) == [b"x" * 4096] * 256
    assert other.add("counted", 3) == 3
    assert one.num_keys() == 258


@pytest.mark.torch
def test_more_workers_than_the_usual_number_of_open_files_allows_find_the_store(way: Way) -> None:
    port = way.lead(1, way.open(1))
    clients = [way.client(port) for _ in range(FILES)]
    clients[0].set("a", "b")
    assert {client.get("a") for client in clients} == {b"b"}


@pytest.mark.torch
def test_the_keys_of_a_generation_that_is_over_are_not_the_next_ones(way: Way) -> None:
    first = way.lead(1, way.open(1))
    way.client(first).set("address of rank 0", "of old")
    second = way.lead(2, way.open(2))
    assert way.client(second).num_keys() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", first), timeout=5)


@pytest.mark.torch
def test_who_does_not_know_the_secret_gets_nothing_out_of_the_stores_port(way: Way) -> None:
    port = way.open(1)
    assert heard(port, first_words(way) + b"\n") == b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BFT_SECRET", new_secret())
        tunnel = Tunnel()
        wrong = tunnel.open(1, "127.0.0.1", port)
        assert heard(wrong, b"hello") == b""
        assert tunnel._process is not None
        tunnel._process.kill()
        tunnel._process.communicate()


@AS_ROOT
@pytest.mark.torch
def test_another_user_of_a_node_gets_nothing_through_its_tunnel(way: Way) -> None:
    port = way.lead(1, way.open(1))
    client = way.client(port)
    client.set("address of rank 0", "n1:4711")
    # What a worker's client says when it connects, as seen on its way to a store of the same kind.
    assert heard(port, words := first_words(way)) not in (b"", None)
    assert as_stranger(lambda: str(heard(port, words))) == "b''"
    assert client.num_keys() == 1


def first_words(way: Way) -> bytes:
    """What torch's client says when it connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pid = os.fork()
        if pid == 0:
            way.client(listening.getsockname()[1])
        near, _ = listening.accept()
        said = b""
        near.settimeout(0.5)
        try:
            while data := near.recv(4096):
                said += data
        except TimeoutError:
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        near.close()
        return said


@pytest.mark.torch
def test_neither_the_store_nor_a_tunnel_tells_the_secret_on_a_command_line(way: Way) -> None:
    way.lead(1, way.open(1))
    assert way.tunnel._process is not None
    for process in (way.store, way.tunnel._process):
        assert way.secret not in Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.mark.torch
async def test_a_worker_that_hangs_up_leaves_no_connection_behind(way: Way) -> None:
    import psutil

    port = way.lead(1, way.open(1))
    assert way.tunnel._process is not None
    processes = [psutil.Process(way.store.pid), psutil.Process(way.tunnel._process.pid)]
    before = [len(process.net_connections()) for process in processes]
    clients = [way.client(port) for _ in range(5)]
    clients[0].set("a", "b")
    assert [len(process.net_connections()) for process in processes] != before
    clients.clear()
    await until("gone", lambda: [len(process.net_connections()) for process in processes] == before)
