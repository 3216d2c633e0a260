"""Sealed connections between a driver and its agents and workers; see elastic.link.authentication."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import BinaryIO

from elastic.base.errors import WireError
from elastic.base.timing import HANDSHAKE_S, WORKER_LINK_S
from elastic.link.address import join_address, split_address
from elastic.link.authentication import HELLO_BYTES, Introduction, Seal, Seals
from elastic.link.wire import MAX_LINE_BYTES, Message, decode, encode, notice_silence, read_line


async def introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, about: Message
) -> Seals | None:
    """Prove to the driver that this end knows the secret, once the driver has proved the same; None if it hangs up.

    Raises WireError if the driver does not know the secret.
    """
    introduction = Introduction(secret, about)
    writer.write(introduction.hello)
    challenge = await read_line(reader)
    if challenge is None:
        return None
    proof, seals = introduction.answer(challenge)
    writer.write(proof)
    return seals


class SealedReader:
    """The incoming messages of one end, with asyncio."""

    def __init__(self, reader: asyncio.StreamReader, seal: Seal) -> None:
        self._reader = reader
        self._seal = seal

    async def receive(self) -> Message | None:
        """Return the next message, or None at the end of the stream; raises WireError."""
        line = await read_line(self._reader)
        return None if line is None else decode(self._seal.opened(line))


class BlockingChannel:
    """A worker's connection: one thread reads and blocks, any thread writes."""

    def __init__(self, sock: socket.socket, seals: Seals) -> None:
        self._sock = sock
        self._seals = seals
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(sock, WORKER_LINK_S)

    @classmethod
    def connect(cls, address: str, secret: str, about: Message) -> BlockingChannel:
        """Connect to the driver at "host:port"; raises OSError, and WireError if it does not know the secret."""
        sock = socket.create_connection(split_address(address), HANDSHAKE_S)
        try:
            seals = _introduced(sock, Introduction(secret, about))
            sock.settimeout(None)
            return cls(sock, seals)
        except BaseException:
            sock.close()
            raise

    @property
    def address(self) -> str:
        """The address of the other end, "host:port", as this connection resolved it."""
        host, port, *_ = self._sock.getpeername()
        return join_address(host, port)

    def send(self, message: Message) -> None:
        """Send one whole message; raises OSError if the peer is gone."""
        with self._lock:
            self._sock.sendall(self._seals.outgoing.line(encode(message)))

    def send_raw(self, *parts: bytes | memoryview) -> None:
        """Send bytes that a sealed line before or after them vouches for; raises OSError."""
        for part in parts:
            self._sock.sendall(part)

    def send_file(self, file: BinaryIO, start: int, size_bytes: int) -> int:
        """Have the kernel send a part of a file; returns how much of it there was. Raises OSError."""
        return self._sock.sendfile(file, start, size_bytes)

    def receive(self) -> Message | None:
        """Return the next message, or None if the peer is gone or its message does not fit the seal."""
        try:
            line = self._file.readline(MAX_LINE_BYTES)
            return decode(self._seals.incoming.opened(line)) if line.endswith(b"\n") else None
        except (OSError, WireError):
            return None

    def hang_up(self) -> None:
        """End the connection, even while a read waits."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def read_into(self, view: memoryview) -> int:
        """Read at least some raw bytes; returns 0 if the peer has hung up. Raises OSError."""
        return self._file.readinto1(view)

    def close(self) -> None:
        self._file.close()
        self._sock.close()


def _introduced(sock: socket.socket, introduction: Introduction) -> Seals:
    sock.sendall(introduction.hello)
    challenge = b""
    # The driver sends nothing more until it has the proof.
    while not challenge.endswith(b"\n"):
        if len(challenge) >= HELLO_BYTES:
            raise WireError("who listens at $BFT_DRIVER is no driver")
        piece = sock.recv(HELLO_BYTES - len(challenge))
        if not piece:
            raise ConnectionResetError("the driver hung up")
        challenge += piece
    proof, seals = introduction.answer(challenge)
    sock.sendall(proof)
    return seals
