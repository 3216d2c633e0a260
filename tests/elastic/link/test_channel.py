"""Sealed connections as the driver and a worker use them."""

from __future__ import annotations

import socket
import threading

import pytest

from elastic.link.authentication import Seal, Seals
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message


def channels() -> tuple[BlockingChannel, BlockingChannel]:
    one, other = socket.socketpair()
    return (
        BlockingChannel(one, Seals(Seal(b"up"), Seal(b"down"))),
        BlockingChannel(other, Seals(Seal(b"down"), Seal(b"up"))),
    )


def test_messages_of_several_threads_do_not_mix() -> None:
    ours, theirs = channels()

    def send(message: Message) -> None:
        for _ in range(200):
            ours.send(message)

    senders = [threading.Thread(target=send, args=({"op": op, "padding": op * 5000},)) for op in "ab"]
    for sender in senders:
        sender.start()
    seen = []
    for _ in range(400):
        message = theirs.receive()
        assert message is not None
        assert message["padding"] == message["op"] * 5000
        seen.append(message["op"])
    for sender in senders:
        sender.join()
    assert (seen.count("a"), seen.count("b")) == (200, 200)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("line", [b'{"op":"abort"}\n', b"0" * 64 + b' {"op":"abort"}\n', b"0" * 64, b"\n", b""])
def test_a_worker_takes_what_is_not_sealed_for_the_end_of_its_driver(line: bytes) -> None:
    one, other = socket.socketpair()
    channel = BlockingChannel(other, Seals(Seal(b"down"), Seal(b"up")))
    one.sendall(line)
    one.close()
    assert channel.receive() is None
    channel.close()
