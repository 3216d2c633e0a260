"""The driver's server: who does not know the secret is not listened to, and cannot disturb."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from elastic.base.errors import WireError
from elastic.driver import server as hubs
from elastic.driver.server import Hub, listen
from elastic.link import descriptors
from elastic.link.address import join_address
from elastic.link.authentication import Examination, Introduction, Seals
from elastic.link.channel import BlockingChannel, SealedReader, introduce
from elastic.link.peer import Peer
from elastic.link.wire import Message, decode, encode
from tests.elastic.fakes import until
from tests.support.messages import pattern, wording

pytestmark = pytest.mark.slow

SECRET = "5a17"


class Listener:
    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.addresses: list[str] = []
        self.welcome = True
        self.raises: Exception | None = None

    def connected(self, peer: Peer) -> bool:
        self.log.append(("connected", peer.hello["lease"]))
        self.addresses.append(peer.address)
        return self.welcome

    async def received(self, peer: Peer, message: Message) -> None:
        if self.raises is not None:
            raise self.raises
        self.log.append((message["op"], peer.hello["lease"]))

    def disconnected(self, peer: Peer) -> None:
        self.log.append(("disconnected", peer.hello["lease"]))


OpenHub = Callable[..., AbstractAsyncContextManager[tuple[Listener, int]]]


@pytest.fixture
def hub() -> Iterator[OpenHub]:
    """Opens a hub; asyncio has nothing to complain about in the log in the end."""
    complaints: list[dict[str, Any]] = []

    @asynccontextmanager
    async def opened(log: Callable[[str], None] = lambda _: None) -> AsyncIterator[tuple[Listener, int]]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        listener, listening = Listener(), listen()
        hub = Hub(listener, SECRET, listening, log)
        await asyncio.sleep(0)  # it begins
        yield listener, listening.getsockname()[1]
        hub.close()

    yield opened
    assert complaints == []


async def joined(port: int, lease_id: str, secret: str = SECRET) -> tuple[SealedReader, asyncio.StreamWriter, Seals]:
    """A peer that has proved itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seals = await introduce(reader, writer, secret, {"lease": lease_id})
    assert seals is not None
    return SealedReader(reader, seals.incoming), writer, seals


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """Whether the driver ends the connection and says nothing more."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_worker_connects_by_ipv4_and_by_ipv6(hub: OpenHub, host: str) -> None:
    async with hub() as (listener, port):
        connect = functools.partial(BlockingChannel.connect, join_address(host, port), SECRET, {"lease": "n1.1"})
        channel = await asyncio.to_thread(connect)
        await until("connected", lambda: listener.addresses)
        channel.close()
        assert listener.addresses == [host]


async def test_a_peer_that_proves_itself_is_heard_until_it_hangs_up(hub: OpenHub) -> None:
    async with hub() as (listener, port):
        _, writer, seals = await joined(port, "n1.1")
        writer.write(seals.outgoing.line(encode({"op": "ready"})))
        writer.close()
        await until("gone", lambda: listener.log[-1:] == [("disconnected", "n1.1")])
        assert listener.log == [("connected", "n1.1"), ("ready", "n1.1"), ("disconnected", "n1.1")]
        assert listener.addresses == ["127.0.0.1"], "as an IPv4 address, by which Horovod's server knows its guests"


@pytest.mark.parametrize(
    "said",
    [
        encode({"op": "hello"})[:-1],
        encode({"op": "hello", "lease": "n1.1"}) + encode({"op": "ready"}),
        encode({"op": "ready"}),
        encode({"op": "hello", "lease": "n1.1", "padding": "x" * 5000}),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x80\x04\x95\n",
        b"[" * 4000 + b"\n",
        b"no end" * 100_000,
        b"",
    ],
)
async def test_a_stray_connection_is_told_nothing_and_ignored(hub: OpenHub, said: bytes) -> None:
    async with hub() as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        writer.write_eof()
        assert await hung_up(reader)
        writer.close()
        assert listener.log == []


@pytest.mark.parametrize("secret", ["", SECRET + "0", "5a18", "\xe9"])
async def test_a_peer_with_a_wrong_secret_or_none_is_not_listened_to(hub: OpenHub, secret: str) -> None:
    async with hub() as (listener, port):
        with pytest.raises(WireError, match=pattern("elastic.seal.wrong_secret")):
            await joined(port, "n1.1", secret)
        # One that goes on although the driver proved to be another's.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        introduction = Introduction(secret, {"lease": "n1.1"})
        writer.write(introduction.hello)
        await reader.readline()
        forged, _ = introduction.answer(Examination(secret, introduction.hello).challenge)
        writer.write(forged + encode({"op": "leaving"}))
        assert await hung_up(reader)
        writer.close()
        assert listener.log == []


async def test_a_recorded_connection_replayed_is_not_listened_to(hub: OpenHub) -> None:
    async with hub() as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        introduction = Introduction(SECRET, {"lease": "n1.1"})
        writer.write(introduction.hello)
        proof, seals = introduction.answer(await reader.readline())
        recorded = proof + seals.outgoing.line(encode({"op": "ready"}))
        writer.write(recorded)
        await until("heard", lambda: ("ready", "n1.1") in listener.log)
        writer.close()
        await until("gone", lambda: listener.log[-1:] == [("disconnected", "n1.1")])
        before = list(listener.log)
        again, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(introduction.hello)
        await again.readline()
        writer.write(recorded)
        assert await hung_up(again)
        writer.close()
        assert listener.log == before


async def test_the_drivers_own_words_sent_back_to_it_prove_nothing(hub: OpenHub) -> None:
    async with hub() as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode({"op": "hello", "lease": "n1.1"}))
        challenge = decode(await reader.readline())
        writer.write(challenge["proof"].encode())
        assert await hung_up(reader)
        writer.close()
        assert listener.log == []


async def test_a_flood_of_half_open_connections_keeps_nobody_out(hub: OpenHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_STRANGERS", 8)
    monkeypatch.setattr(hubs, "STRANGER_S", 0.01)
    async with hub() as (listener, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for number, (_, writer) in enumerate(silent):
            if number % 2:
                writer.write(encode({"op": "hello", "lease": "n2.1"}))
        _, writer, seals = await joined(port, "n1.1")
        writer.write(seals.outgoing.line(encode({"op": "ready"})))
        await until("heard", lambda: ("ready", "n1.1") in listener.log)
        for _, stranger in silent:
            stranger.close()
        assert {lease_id for _, lease_id in listener.log} == {"n1.1"}
        writer.close()


async def test_many_honest_peers_at_once_are_all_let_in_however_few_may_prove_themselves_at_a_time(
    hub: OpenHub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "_STRANGERS", 2)
    async with hub() as (listener, port):
        peers = await asyncio.gather(*(joined(port, f"n{number}.1") for number in range(64)))
        await until("all are in", lambda: len(listener.log) == 64)
        for _, writer, _ in peers:
            writer.close()
        await until("all are gone", lambda: len(listener.log) == 128)


async def test_a_connection_that_does_not_finish_its_proof_is_ended(
    hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "HANDSHAKE_S", 0.05)
    async with hub() as (listener, port):
        for said in (b"", encode({"op": "hello", "lease": "n1.1"})):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            await reader.read()
            writer.close()
        assert listener.log == []


async def test_a_peer_that_is_not_of_the_present_is_dropped(hub: OpenHub) -> None:
    async with hub() as (listener, port):
        listener.welcome = False
        reader, writer, seals = await joined(port, "n9.9")
        writer.write(seals.outgoing.line(encode({"op": "ready"})))
        assert await reader.receive() is None
        writer.close()
        assert ("ready", "n9.9") not in listener.log


@pytest.mark.parametrize("nonsense", [b"nonsense\n", encode({"op": "leaving"}), b"0" * 64 + b' {"op":"leaving"}\n'])
async def test_a_peer_whose_message_does_not_fit_its_seal_is_dropped_and_the_others_are_not(
    hub: OpenHub, nonsense: bytes
) -> None:
    async with hub() as (listener, port):
        _, good, seals = await joined(port, "n1.1")
        reader, bad, _ = await joined(port, "n2.1")
        bad.write(nonsense)
        assert await reader.receive() is None
        good.write(seals.outgoing.line(encode({"op": "ready"})))
        await until("heard", lambda: ("ready", "n1.1") in listener.log)
        good.close()
        bad.close()
        await until("gone", lambda: listener.log[-1:] == [("disconnected", "n1.1")])
        assert ("leaving", "n2.1") not in listener.log


async def test_a_closed_hub_accepts_nobody_and_keeps_whom_it_has() -> None:
    listener = Listener()
    listening = listen()
    port = listening.getsockname()[1]
    hub = Hub(listener, SECRET, listening)
    _, writer, seals = await joined(port, "n1.1")
    hub.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.write(seals.outgoing.line(encode({"op": "ready"})))
    await until("heard", lambda: ("ready", "n1.1") in listener.log)
    writer.close()


# -- strangers in crowds ---


def crowd(port: int, count: int, says: bytes = b"", source: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that never finish their proof."""
    made = []
    for _ in range(count):
        stranger = socket.socket()
        stranger.bind((source, 0))
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        made.append(stranger)
        with contextlib.suppress(OSError):  # one that still waits at the door
            stranger.send(says)
    return made


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave to open 4000 connections, with both ends in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 10_000:
        pytest.skip("4000 connections have two ends each here: the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 10_000), hard))
    monkeypatch.setattr(descriptors, "limit", lambda: 20_000)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("says", [b"", b"x"], ids=["silent", "a byte each"])
async def test_regression_4000_silent_connections_kept_an_honest_worker_out(
    hub: OpenHub, monkeypatch: pytest.MonkeyPatch, many_files: None, says: bytes
) -> None:
    monkeypatch.setattr(hubs, "HANDSHAKE_S", 1000.0)
    async with hub() as (listener, port):
        strangers = await asyncio.to_thread(crowd, port, 4000, says)
        try:
            _, writer, _ = await joined(port, "n1.1")
            await until("in", lambda: ("connected", "n1.1") in listener.log)
            assert not any(is_closed(stranger) for stranger in strangers), "it waited for none of them to go"
            writer.close()
        finally:
            for stranger in strangers:
                stranger.close()


async def test_who_makes_way_comes_from_where_most_strangers_come_from(
    hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "_STRANGERS", 10)
    monkeypatch.setattr(hubs, "STRANGER_SILENT_S", 0.0)
    honest: list[socket.socket] = []
    async with hub() as (_, port):
        honest.extend(crowd(port, 3, source="127.0.0.2"))
        strangers = crowd(port, 100, source="127.0.0.3")
        # Those who wait at the door come one by one: the last is in when the crowd's first are out.
        await until("turned away", lambda: sum(is_closed(stranger) for stranger in strangers) >= 90)
        await asyncio.sleep(0.05)
        assert not any(is_closed(stranger) for stranger in honest), "who came first from elsewhere is still heard"
        for stranger in [*honest, *strangers]:
            stranger.close()


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_64_workers_of_one_node_are_let_in_under_the_same_address_as_a_crowd(
    hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "_STRANGERS", 80)
    async with hub() as (listener, port):
        strangers = await asyncio.to_thread(crowd, port, 200)
        peers = await asyncio.gather(*(joined(port, f"n{number}.1") for number in range(64)))
        await until("all are in", lambda: len(listener.log) == 64)
        for _, writer, _ in peers:
            writer.close()
        for stranger in strangers:
            stranger.close()
        await until("all are gone", lambda: len(listener.log) == 128)


async def test_strangers_get_no_more_than_a_part_of_the_files_that_may_be_open(
    hub: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 40)
    async with hub() as (_, port):
        before = len(os.listdir("/proc/self/fd"))
        strangers = crowd(port, 60)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert len(os.listdir("/proc/self/fd")) - before <= 60 + 10
        for stranger in strangers:
            stranger.close()


def test_a_network_of_ipv6_addresses_is_one_crowd() -> None:
    assert hubs._source("2001:db8:1:2:aaaa::1") == hubs._source("2001:db8:1:2:bbbb::7%eth0")
    assert hubs._source("2001:db8:1:2::1") != hubs._source("2001:db8:1:3::1")
    assert hubs._source("::ffff:10.0.0.7") == hubs._source("10.0.0.7")
    assert hubs._source("10.0.0.7") != hubs._source("10.0.0.8")


# -- what one peer says is that peer's affair ---


@pytest.mark.parametrize("error", [KeyError("bytes"), ValueError("no number"), TypeError("not a list")])
async def test_regression_a_message_that_was_not_understood_was_shown_as_a_fault_of_the_driver(
    hub: OpenHub, error: Exception
) -> None:
    lines: list[str] = []
    async with hub(lines.append) as (listener, port):
        listener.raises = error
        _, good, seals = await joined(port, "n1.1")
        reader, bad, bad_seals = await joined(port, "n2.1")
        bad.write(bad_seals.outgoing.line(encode({"op": "odd"})))
        assert await reader.receive() is None
        listener.raises = None
        good.write(seals.outgoing.line(encode({"op": "ready"})))
        await until("heard", lambda: ("ready", "n1.1") in listener.log)
        good.close()
        bad.close()
        await until("gone", lambda: ("disconnected", "n1.1") in listener.log)
    assert [repr(error) in line and "n2.1" in line for line in lines] == [True]


async def test_regression_a_full_disk_of_the_drivers_cut_a_worker_off_for_good(hub: OpenHub) -> None:
    lines: list[str] = []
    async with hub(lines.append) as (listener, port):
        listener.raises = OSError(errno.EDQUOT, "Disk quota exceeded")
        _, writer, seals = await joined(port, "n1.1")
        writer.write(seals.outgoing.line(encode({"op": "state"})))
        await until("said", lambda: lines)
        listener.raises = None
        writer.write(seals.outgoing.line(encode({"op": "ready"})))
        writer.close()
        await until("gone", lambda: ("disconnected", "n1.1") in listener.log)
    assert lines == [
        wording(
            "elastic.hub.not_carried_out", op="state", peer="the peer of n1.1", error="[Errno 122] Disk quota exceeded"
        )
    ]
