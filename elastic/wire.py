"""The protocol between driver, agents and workers: one JSON object a line, typed by `op`, optionally with a payload.

A message whose header has `bytes` is followed by so many raw bytes (a checkpoint). Every connection begins with a
`hello` that carries the trainer's secret and the lease, so a message can never be taken for another trainer's.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any, BinaryIO

from elastic.errors import WireError

Message = dict[str, Any]

MAX_LINE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20


def encode(message: Message) -> bytes:
    """One message as a line; raises TypeError when it holds something that JSON has not."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """One line as a message; raises WireError when it is not an object with a string `op`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a message: {line[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise WireError(f"not a message: {line[:80]!r}")
    return message


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None at the end of the stream (a half line counts as the end)."""
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError as error:
        raise WireError("a message is longer than 1 MiB") from error
    return decode(line)


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Sends small messages at once: a give-back waits for them."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class BlockingChannel:
    """A worker's connection: blocking reads by one thread, writes by any."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file: BinaryIO = sock.makefile("rb")
        self._lock = threading.Lock()
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def connect(cls, address: str, timeout_s: float = 10.0) -> BlockingChannel:
        """Connects to "host:port"; raises OSError."""
        host, _, port = address.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout_s)
        sock.settimeout(None)
        return cls(sock)

    def send(self, message: Message, payload: bytes | memoryview | None = None) -> None:
        """Sends one message, whole; raises OSError when the peer is gone."""
        if payload is not None:
            message = {**message, "bytes": len(payload)}
        with self._lock:
            self._sock.sendall(encode(message))
            if payload is not None:
                self._sock.sendall(payload)

    def receive(self) -> Message | None:
        """The next message, or None when the peer is gone."""
        try:
            line = self._file.readline(MAX_LINE_BYTES)
        except OSError:
            return None
        return decode(line) if line.endswith(b"\n") else None

    def receive_payload(self, size_bytes: int) -> bytes:
        """The raw bytes that follow a message; raises WireError when the stream ends before."""
        data = self._file.read(size_bytes)
        if len(data) != size_bytes:
            raise WireError("the driver went away in the middle of a checkpoint")
        return data

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()
