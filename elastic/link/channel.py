"""Sealed connections between a driver and its agents and workers; see elastic.link.seal."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import threading
from typing import BinaryIO

from elastic.errors import WireError
from elastic.link.address import split_address
from elastic.link.seal import HELLO_BYTES, TRAILER_BYTES, Introduction, Seal, Seals
from elastic.link.wire import CHUNK_BYTES, MAX_LINE_BYTES, Message, decode, encode, notice_silence, read_line
from elastic.timing import HANDSHAKE_S, WORKER_LINK_S

_CUT_SHORT = "the other end went away in the middle of a checkpoint"
_ALTERED = "a checkpoint was altered on its way"


def payload_bytes(message: Message) -> int:
    """How many raw bytes follow a message; raises WireError."""
    size_bytes = message.get("bytes", 0)
    if not isinstance(size_bytes, int) or size_bytes < 0:
        raise WireError(f"a payload cannot have {size_bytes!r} bytes")
    return size_bytes


async def introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, about: Message
) -> Seals | None:
    """Proves to the driver that this end knows the secret, once the driver has proved the same; None when it hangs up.

    Raises WireError when the driver does not know the secret.
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
    """One end's incoming messages, with asyncio."""

    def __init__(self, reader: asyncio.StreamReader, seal: Seal) -> None:
        self._reader = reader
        self._seal = seal
        self._payload: hmac.HMAC | None = None
        self._left = 0

    async def receive(self) -> Message | None:
        """The next message, or None at the end of the stream; a payload that nobody has read is skipped."""
        while self._left:
            await self.read(CHUNK_BYTES)
        line = await read_line(self._reader)
        if line is None:
            return None
        message = decode(self._seal.opened(line))
        self._left = payload_bytes(message)
        self._payload = self._seal.payload() if self._left else None
        return message

    async def read(self, size_bytes: int) -> bytes:
        """Some bytes of the last message's payload, b"" when the peer is gone.

        The last ones come only once the seal on all of them was found right; raises WireError.
        """
        if not self._left or self._payload is None:
            return b""
        data = await self._reader.read(min(size_bytes, self._left))
        self._payload.update(data)
        self._left = self._left - len(data) if data else 0
        if data and not self._left:
            try:
                trailer = await self._reader.readexactly(TRAILER_BYTES)
            except (asyncio.IncompleteReadError, ConnectionError):
                return b""
            if not hmac.compare_digest(trailer, self._payload.digest()):
                raise WireError(_ALTERED)
        return data


class BlockingChannel:
    """A worker's connection: blocking reads by one thread, writes by any."""

    def __init__(self, sock: socket.socket, seals: Seals) -> None:
        self._sock = sock
        self._seals = seals
        self._file: BinaryIO = sock.makefile("rb")
        self._lock = threading.Lock()
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(sock, WORKER_LINK_S)

    @classmethod
    def connect(cls, address: str, secret: str, about: Message) -> BlockingChannel:
        """Connects to the driver at "host:port"; raises OSError, and WireError when it does not know the secret."""
        sock = socket.create_connection(split_address(address), HANDSHAKE_S)
        try:
            seals = _introduced(sock, Introduction(secret, about))
            sock.settimeout(None)
            return cls(sock, seals)
        except BaseException:
            sock.close()
            raise

    def send(self, message: Message, payload: bytes | memoryview | None = None) -> None:
        """Sends one message, whole; raises OSError when the peer is gone."""
        if payload is not None:
            message = {**message, "bytes": len(payload)}
        with self._lock:
            seal = self._seals.outgoing
            self._sock.sendall(seal.line(encode(message)))
            if payload:
                mac = seal.payload()
                # Piece by piece, so that the other end works on one while this one seals the next.
                for start in range(0, len(payload), CHUNK_BYTES):
                    piece = memoryview(payload)[start : start + CHUNK_BYTES]
                    self._sock.sendall(piece)
                    mac.update(piece)
                self._sock.sendall(mac.digest())

    def receive(self) -> Message | None:
        """The next message, or None when the peer is gone or what it sends does not fit its seal."""
        try:
            line = self._file.readline(MAX_LINE_BYTES)
            return decode(self._seals.incoming.opened(line)) if line.endswith(b"\n") else None
        except (OSError, WireError):
            return None

    def hang_up(self) -> None:
        """Ends the connection, also for a read that waits."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def receive_payload(self, size_bytes: int) -> bytes:
        """The raw bytes that follow a message; raises WireError when the stream ends before, or they were altered."""
        mac = self._seals.incoming.payload()
        data = self._file.read(size_bytes)
        trailer = self._file.read(TRAILER_BYTES)
        if len(trailer) != TRAILER_BYTES:
            raise WireError(_CUT_SHORT)
        mac.update(data)
        if not hmac.compare_digest(trailer, mac.digest()):
            raise WireError(_ALTERED)
        return data

    def close(self) -> None:
        self._file.close()
        self._sock.close()


def _introduced(sock: socket.socket, introduction: Introduction) -> Seals:
    sock.sendall(introduction.hello)
    challenge = b""
    # The driver says nothing more until it has the proof.
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
