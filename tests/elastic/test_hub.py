"""The driver's server: who does not know the secret is not listened to, and cannot disturb."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic.driver.hub import Hub
from elastic.driver.pilots import Peer
from elastic.wire import Message, encode
from tests.elastic.fakes import until

SECRET = "5a17"


class Listener:
    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.welcome = True

    def connected(self, peer: Peer) -> bool:
        self.log.append(("connected", peer.hello["host"]))
        return self.welcome

    async def received(self, peer: Peer, message: Message, reader: asyncio.StreamReader) -> None:
        self.log.append((message["op"], peer.hello["host"]))

    def disconnected(self, peer: Peer) -> None:
        self.log.append(("disconnected", peer.hello["host"]))


def scene(body: Callable[[Listener, int], Awaitable[None]]) -> list[dict[str, Any]]:
    """Runs a hub; returns what asyncio would have complained about in the log."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        listener = Listener()
        hub = Hub(listener, SECRET)
        await asyncio.wait_for(body(listener, await hub.start()), 30)
        hub.close()

    asyncio.run(run())
    return complaints


def test_a_peer_with_the_secret_is_heard_until_it_hangs_up() -> None:
    async def body(listener: Listener, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode({"op": "hello", "secret": SECRET, "host": "n1.1"}) + encode({"op": "ready"}))
        writer.close()
        await until("gone", lambda: listener.log[-1:] == [("disconnected", "n1.1")])
        assert listener.log == [("connected", "n1.1"), ("ready", "n1.1"), ("disconnected", "n1.1")]

    assert scene(body) == []


@pytest.mark.parametrize(
    "said",
    [
        encode({"op": "hello", "host": "n1.1"}),
        encode({"op": "hello", "secret": "5a18", "host": "n1.1"}),
        encode({"op": "hello", "secret": "", "host": "n1.1"}),
        encode({"op": "hello", "secret": None, "host": "n1.1"}),
        encode({"op": "hello", "secret": "é", "host": "n1.1"}),
        encode({"op": "hello", "secret": "\ud800", "host": "n1.1"}),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x80\x04\x95\n",
        b"[" * 100_000 + b"\n",
        b"no end",
        b"",
    ],
)
def test_a_stray_connection_without_the_secret_is_ignored(said: bytes) -> None:
    async def body(listener: Listener, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said + encode({"op": "leaving"}))
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert listener.log == []

    assert scene(body) == []


def test_a_peer_that_is_not_of_the_present_is_dropped() -> None:
    async def body(listener: Listener, port: int) -> None:
        listener.welcome = False
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode({"op": "hello", "secret": SECRET, "host": "n9.9"}) + encode({"op": "ready"}))
        assert await reader.read() == b""
        writer.close()
        assert ("ready", "n9.9") not in listener.log

    assert scene(body) == []


def test_a_peer_that_talks_nonsense_is_dropped_and_the_others_are_not() -> None:
    async def body(listener: Listener, port: int) -> None:
        _, good = await asyncio.open_connection("127.0.0.1", port)
        good.write(encode({"op": "hello", "secret": SECRET, "host": "n1.1"}))
        bad_reader, bad = await asyncio.open_connection("127.0.0.1", port)
        bad.write(encode({"op": "hello", "secret": SECRET, "host": "n2.1"}) + b"nonsense\n")
        assert await bad_reader.read() == b""
        good.write(encode({"op": "ready"}))
        await until("heard", lambda: ("ready", "n1.1") in listener.log)
        good.close()
        bad.close()
        await until("gone", lambda: listener.log[-1:] == [("disconnected", "n1.1")])

    assert scene(body) == []
