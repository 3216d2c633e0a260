"""A stream of bytes as sealed messages: torch's own protocol, of any version, on an authenticated connection."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode

from elastic.base.errors import WireError
from elastic.link.peer import Peer
from elastic.link.wire import Message

_PIECE_BYTES = 1 << 16


async def seal(plain: asyncio.StreamReader, sealed: Peer) -> None:
    """Forward the bytes of a stream until its end; raises OSError if the other side is gone."""
    while data := await plain.read(_PIECE_BYTES):
        sealed.send({"op": "bytes", "data": b64encode(data).decode()})
        await sealed.writer.drain()


async def unseal(message: Message, plain: asyncio.StreamWriter) -> None:
    """Forward the bytes in a message; raises WireError if there are none, OSError if the reader is gone."""
    try:
        data = b64decode(message["data"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("a message to or from torchrun's store carries no bytes") from error
    plain.write(data)
    await plain.drain()
