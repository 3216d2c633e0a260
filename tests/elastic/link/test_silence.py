"""Connections whose other end says nothing any more, as the kernel sees them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from elastic.base.timing import AGENT_LINK_S, WORKER_LINK_S
from elastic.driver.server import Hub, listen
from elastic.link.channel import BlockingChannel
from elastic.link.peer import Peer
from elastic.link.wire import Message, notice_silence
from tests.elastic.far_end import SECRET

pytestmark = pytest.mark.slow


def watched_ms(sock: socket.socket) -> int:
    """After how long without an acknowledgement the kernel ends the connection; 0 is its own idea of it."""
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize(("role", "within_s"), [("agent", AGENT_LINK_S), ("worker", WORKER_LINK_S)])
def test_both_ends_of_a_connection_notice_that_the_other_one_is_gone_without_a_word(role: str, within_s: float) -> None:
    seen: list[int] = []

    class Listener:
        def connected(self, peer: Peer) -> bool:
            seen.append(watched_ms(peer.writer.get_extra_info("socket")))
            return False

        async def received(self, peer: Peer, message: Message) -> None:
            pass

        def disconnected(self, peer: Peer) -> None:
            pass

    async def run() -> int:
        listening = listen()
        hub = Hub(Listener(), SECRET, listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        channel = await asyncio.to_thread(BlockingChannel.connect, address, SECRET, {"role": role, "lease": "n1.1"})
        ours = watched_ms(channel._sock)
        assert await asyncio.to_thread(channel.receive) is None
        channel.close()
        hub.close()
        return ours

    ours = asyncio.run(run())
    assert seen == [within_s * 1000]
    assert ours == WORKER_LINK_S * 1000


def test_a_unix_socket_needs_no_watching() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        notice_silence(ours, 1.0)
        notice_silence(None, 1.0)


@pytest.mark.parametrize(("within_s", "cut"), [(1.0, True), (WORKER_LINK_S, False)])
def test_an_end_that_takes_no_more_counts_as_silent_so_a_workers_link_is_patient(within_s: float, cut: bool) -> None:
    """What a store does whose file system stalls: it reads nothing for a while, and acknowledges no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        notice_silence(ours, within_s)
        ours.settimeout(3.0)
        with pytest.raises(OSError, match="timed out") as caught:
            ours.sendall(bytes(64 << 20))
        # the kernel's error and Python's own time-out have the same words and different kinds
        assert (caught.value.errno is not None) == cut
