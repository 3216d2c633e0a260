"""Breaking a hung collective by shutting the right sockets, and telling the interface of a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from elastic.backends.horovod.sockets import SocketWatch, connected_sockets
from elastic.node.resources import interface_of

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    one = socket.create_connection(server.getsockname())
    one.settimeout(20)
    return one, server.accept()[0]


def test_sockets_opened_inside_the_block_are_shut_and_no_others(server: socket.socket) -> None:
    before, before_peer = connect(server)
    watch = SocketWatch()
    with watch.opening():
        inside, inside_peer = connect(server)
    after, after_peer = connect(server)
    assert watch.shut() == 2
    assert inside.recv(1) == b""
    for one, other in ((before, before_peer), (after, after_peer)):
        other.sendall(b"x")
        assert one.recv(1) == b"x"
    for sock in (before, before_peer, inside, inside_peer, after, after_peer):
        sock.close()


def test_a_descriptor_that_became_somebody_elses_is_left_alone(server: socket.socket) -> None:
    watch = SocketWatch()
    with watch.opening():
        inside, inside_peer = connect(server)
    numbers = {inside.fileno(), inside_peer.fileno()}
    inside.close()
    inside_peer.close()
    one, other = connect(server)
    assert {one.fileno(), other.fileno()} == numbers
    assert watch.shut() == 0
    other.sendall(b"x")
    assert one.recv(1) == b"x"
    one.close()
    other.close()


def test_after_an_orderly_goodbye_nothing_is_shut(server: socket.socket) -> None:
    watch = SocketWatch()
    with watch.opening():
        one, other = connect(server)
    watch.forget()
    assert watch.shut() == 0
    one.close()
    other.close()


def test_looking_for_sockets_leaves_no_descriptor_behind(server: socket.socket) -> None:
    with open(os.devnull) as _, socket.socketpair()[0]:
        before = set(os.listdir("/proc/self/fd"))
        connected_sockets()
        # the collector may close what other tests have dropped
        assert set(os.listdir("/proc/self/fd")) <= before


def test_listeners_files_and_unix_sockets_are_no_connections(server: socket.socket) -> None:
    found = connected_sockets()
    with socket.socketpair()[0] as local:
        assert connected_sockets() == found
        assert not {server.fileno(), local.fileno()} & set(found)


class Writer:
    """A connection with a local address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return (self._address, 1)


def test_the_interface_is_the_one_that_holds_the_connections_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET:
                expected = "lo" if address.address.startswith("127.") else name
                assert interface_of(Writer(address.address)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_a_loopback_address_of_no_interface_of_its_own_is_the_loopbacks(address: str) -> None:
    assert interface_of(Writer(address)) == "lo"  # type: ignore[arg-type]


def test_regression_an_address_that_no_interface_holds_was_taken_for_the_loopback() -> None:
    assert interface_of(Writer("203.0.113.9")) is None  # type: ignore[arg-type]
    assert interface_of(None) is None
