"""The protocol between driver, agents and workers: one JSON object a line, typed by `op`.

Between hosts a connection begins with a proof of both ends (elastic.link.authentication) and is bound to one lease, so
no message can be taken for one of another lease. Checkpoints have connections of their own (elastic.link.bulk).
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from elastic.base.errors import WireError
from elastic.base.timing import KEEPALIVE_S

Message = dict[str, Any]

MAX_LINE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20


def encode(message: Message) -> bytes:
    """Return a message as a line; raises TypeError if it holds something that JSON cannot express."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line as a message; raises WireError unless it is an object with a string `op`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a message: {line[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise WireError(f"not a message: {line[:80]!r}")
    return message


async def read_line(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next line, or None at the end of the stream (a half line counts as the end); raises WireError."""
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError as error:
        raise WireError("a message is longer than 1 MiB") from error


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message of a pipe, or None at its end; raises WireError."""
    line = await read_line(reader)
    return None if line is None else decode(line)


def notice_silence(sock: socket.socket | None, within_s: float) -> None:
    """Have the kernel end a TCP connection whose other end acknowledges nothing for `within_s` (else for 15 minutes).

    The time also runs while the other end takes no more.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, int(KEEPALIVE_S)),
        (socket.TCP_KEEPINTVL, int(KEEPALIVE_S)),
        (socket.TCP_KEEPCNT, max(1, int(within_s / KEEPALIVE_S))),
        (socket.TCP_USER_TIMEOUT, int(within_s * 1000)),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Send small messages at once: a node that is given back waits for them."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
