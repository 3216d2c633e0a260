"""Sealed connections as the driver and a worker use them."""

from __future__ import annotations

import asyncio
import io
import socket
import threading

import pytest

from elastic.errors import WireError
from elastic.link.channel import BlockingChannel, SealedReader, payload_bytes
from elastic.link.peer import Peer
from elastic.link.seal import Seal, Seals
from elastic.link.wire import MAX_LINE_BYTES, Message, encode
from tests.elastic.fakes import KEY, FakeWriter

PAYLOAD = bytes(range(256)) * 8192


def channels() -> tuple[BlockingChannel, BlockingChannel]:
    one, other = socket.socketpair()
    return (
        BlockingChannel(one, Seals(Seal(b"up"), Seal(b"down"))),
        BlockingChannel(other, Seals(Seal(b"down"), Seal(b"up"))),
    )


def sealed(message: Message, payload: bytes = b"", *, key: bytes = KEY) -> bytes:
    """A message and its payload as they travel."""
    seal = Seal(key)
    line = seal.line(encode({**message, "bytes": len(payload)}))
    mac = seal.payload()
    mac.update(payload)
    return line + (payload + mac.digest() if payload else b"")


def fed(data: bytes) -> SealedReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    reader.feed_data(data)
    reader.feed_eof()
    return SealedReader(reader, Seal(KEY))


async def read_all(reader: SealedReader) -> bytes:
    data = b""
    while piece := await reader.read(1 << 20):
        data += piece
    return data


def test_a_payload_travels_whole_between_messages_of_several_threads() -> None:
    ours, theirs = channels()

    def send(times: int, message: Message, data: bytes | None) -> None:
        for _ in range(times):
            ours.send(message, data)

    senders = [
        threading.Thread(target=send, args=(3, {"op": "state"}, PAYLOAD)),
        threading.Thread(target=send, args=(200, {"op": "pong"}, None)),
    ]
    for sender in senders:
        sender.start()
    seen = []
    for _ in range(203):
        message = theirs.receive()
        assert message is not None
        seen.append(message["op"])
        if message["op"] == "state":
            assert theirs.receive_payload(message["bytes"]) == PAYLOAD
    for sender in senders:
        sender.join()
    assert (seen.count("state"), seen.count("pong")) == (3, 200)
    ours.close()
    theirs.close()


def test_a_payload_that_is_cut_short_or_altered_is_an_error_and_not_a_checkpoint() -> None:
    whole = sealed({"op": "fetched"}, b"1234567890", key=b"up")
    altered = whole.replace(b"1234567890", b"1234567891")
    for data in (whole[:-40], whole[:-1], altered):
        one, other = socket.socketpair()
        channel = BlockingChannel(other, Seals(Seal(b"down"), Seal(b"up")))
        one.sendall(data)
        one.close()
        assert channel.receive() == {"op": "fetched", "bytes": 10}
        with pytest.raises(WireError):
            channel.receive_payload(10)
        channel.close()


@pytest.mark.parametrize("line", [b'{"op":"abort"}\n', b"0" * 64 + b' {"op":"abort"}\n', b"0" * 64, b"\n", b""])
def test_a_worker_takes_what_is_not_sealed_for_the_end_of_its_driver(line: bytes) -> None:
    one, other = socket.socketpair()
    channel = BlockingChannel(other, Seals(Seal(b"down"), Seal(b"up")))
    one.sendall(line)
    one.close()
    assert channel.receive() is None
    channel.close()


def test_the_driver_reads_a_payload_whole_or_not_to_its_end() -> None:
    async def scene() -> None:
        whole = sealed({"op": "state"}, PAYLOAD)
        reader = fed(whole)
        assert await reader.receive() == {"op": "state", "bytes": len(PAYLOAD)}
        assert await read_all(reader) == PAYLOAD
        assert await reader.receive() is None
        for cut in (1, 32, 33, 1000):
            reader = fed(whole[:-cut])
            await reader.receive()
            assert len(await read_all(reader)) < len(PAYLOAD)
        reader = fed(whole.replace(b"\x05\x06", b"\x05\x07", 1))
        await reader.receive()
        with pytest.raises(WireError):
            await read_all(reader)

    asyncio.run(scene())


def test_a_payload_that_nobody_wants_is_not_taken_for_messages() -> None:
    async def scene() -> None:
        seal = Seal(KEY)
        data = sealed({"op": "unknown"}, PAYLOAD)
        seal.line(b""), seal.payload()
        reader = fed(data + seal.line(encode({"op": "pong"})))
        assert (await reader.receive() or {})["op"] == "unknown"
        assert await reader.receive() == {"op": "pong"}

    asyncio.run(scene())


@pytest.mark.parametrize("size", [-1, 1.5, "7", None, [], 1e3])
def test_a_payload_of_an_impossible_size_is_refused(size: object) -> None:
    with pytest.raises(WireError):
        payload_bytes({"op": "state", "bytes": size})


def test_what_the_driver_says_while_a_state_is_on_its_way_comes_after_it() -> None:
    class Slow(FakeWriter):
        """A connection whose other end is slow: the driver pings the worker meanwhile."""

        async def drain(self) -> None:
            peer.send({"op": "ping"})
            await asyncio.sleep(0)

    writer = Slow()
    peer = Peer(writer, {}, Seal(KEY))  # type: ignore[arg-type]

    async def scene() -> None:
        await peer.send_file({"op": "fetched"}, io.BytesIO(PAYLOAD), len(PAYLOAD))
        peer.send({"op": "ship"})
        reader = fed(writer.data)
        assert (await reader.receive() or {})["op"] == "fetched"
        assert await read_all(reader) == PAYLOAD
        seen = []
        while (message := await reader.receive()) is not None:
            seen.append(message["op"])
        assert seen == ["ping"] * (len(PAYLOAD) >> 20) + ["ship"]

    asyncio.run(scene())


def test_regression_a_file_that_was_cut_meanwhile_was_read_for_ever() -> None:
    writer = FakeWriter()
    peer = Peer(writer, {}, Seal(KEY))  # type: ignore[arg-type]

    async def scene() -> None:
        with pytest.raises(OSError, match="shorter than it was"):
            await peer.send_file({"op": "fetched"}, io.BytesIO(PAYLOAD[:1000]), len(PAYLOAD))
        peer.send({"op": "ping"})
        # What follows would be taken for the rest of the state.
        assert writer.closed
        assert b"ping" not in writer.data

    asyncio.run(scene())
