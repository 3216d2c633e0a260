"""The driver's server: agents and workers connect here, prove that they know the secret, and are handed to the trainer.

Strangers cost little: one line of bounded length and a bounded time each, and a bounded number of them at once, of
whom the one that has been silent longest makes room for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, Protocol

from elastic.errors import WireError
from elastic.link.channel import SealedReader
from elastic.link.peer import Peer
from elastic.link.seal import HELLO_BYTES, PROOF_BYTES, Examination, Seals
from elastic.link.wire import MAX_LINE_BYTES, Message, Payload, no_delay
from elastic.timing import HANDSHAKE_S, STRANGER_S

_BACKLOG = 4096
"""All workers of a large trainer connect in the same moment; the kernel cuts this to its own limit."""

_STRANGERS = 256
"""Connections that may be in the middle of their proof; others wait in the backlog."""

_RETRY_S = 0.1
"""After an accept that failed because the process has too many files open."""


class Listener(Protocol):
    """What the trainer does with connections."""

    def connected(self, peer: Peer) -> bool:
        """Whether this peer belongs to the trainer."""

    async def received(self, peer: Peer, message: Message, reader: Payload) -> None:
        """Takes one message; a payload that follows it is read from `reader`."""

    def disconnected(self, peer: Peer) -> None:
        """The peer is gone."""


def listen() -> socket.socket:
    """A socket on a free port. Who connects waits for a hub: the port can be told before there is one."""
    listening = socket.create_server(("0.0.0.0", 0), backlog=_BACKLOG)
    listening.setblocking(False)
    return listening


class Hub:
    """Accepts connections that know the trainer's secret."""

    def __init__(self, listener: Listener, secret: str, listening: socket.socket) -> None:
        """`listening` is what `listen` made."""
        self._listener = listener
        self._secret = secret
        self._socket: socket.socket | None = listening
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[Any], float] = {}
        self._fewer = asyncio.Event()
        self._accepting = self._spawn(self._accept(listening))

    def close(self) -> None:
        """Accepts nobody any more; who is connected stays so."""
        if self._socket is not None:
            self._accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room_for_a_stranger()
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            task = self._spawn(self._serve(sock))
            self._strangers[task] = loop.time()

    async def _room_for_a_stranger(self) -> None:
        while len(self._strangers) >= _STRANGERS:
            longest, since_s = next(iter(self._strangers.items()))
            left_s = since_s + STRANGER_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                del self._strangers[longest]
                longest.cancel()
                return
            self._fewer.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._fewer.wait(), left_s)

    async def _serve(self, sock: socket.socket) -> None:
        try:
            about, seals = await asyncio.wait_for(self._examine(sock), HANDSHAKE_S)
            reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES)
        except (WireError, OSError, asyncio.TimeoutError, asyncio.CancelledError):
            sock.close()
            return
        finally:
            self._strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            self._fewer.set()
        await self._listen(Peer(writer, about, seals.outgoing), SealedReader(reader, seals.incoming))

    async def _examine(self, sock: socket.socket) -> tuple[Message, Seals]:
        examination = Examination(self._secret, await _hello(sock))
        await asyncio.get_running_loop().sock_sendall(sock, examination.challenge)
        return examination.about, examination.seals(await _proof(sock))

    async def _listen(self, peer: Peer, reader: SealedReader) -> None:
        no_delay(peer.writer)
        peer.watch()
        try:
            if not self._listener.connected(peer):
                return
            while (message := await reader.receive()) is not None:
                await self._listener.received(peer, message, reader)
        except (WireError, ConnectionError, asyncio.TimeoutError):
            pass
        except asyncio.CancelledError:
            # The driver ends. asyncio would print a connection that was cancelled as a fault.
            pass
        finally:
            self._listener.disconnected(peer)
            peer.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _hello(sock: socket.socket) -> bytes:
    """A stranger's first line. It says nothing more until it is challenged: what follows the line is no peer's."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) >= HELLO_BYTES or b"\n" in line:
            raise WireError("a connection begins with one short line")
        line += await _some(sock, HELLO_BYTES - len(line))
    return line


async def _proof(sock: socket.socket) -> bytes:
    """Exactly a proof: what follows it is the peer's first message."""
    proof = b""
    while len(proof) < PROOF_BYTES:
        proof += await _some(sock, PROOF_BYTES - len(proof))
    return proof


async def _some(sock: socket.socket, size_bytes: int) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(sock, size_bytes)
    if not data:
        raise WireError("a connection ended before it proved anything")
    return data
