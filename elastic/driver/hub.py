"""The driver's server: agents and workers connect here, say who they are, and are handed to the trainer."""

from __future__ import annotations

import asyncio
import hmac
from typing import Protocol

from elastic.driver.pilots import Peer
from elastic.errors import WireError
from elastic.timing import CONNECT_S
from elastic.wire import MAX_LINE_BYTES, Message, no_delay, receive

_BACKLOG = 4096
"""All workers of a large trainer connect in the same moment; the kernel cuts this to its own limit."""


class Listener(Protocol):
    """What the trainer does with connections."""

    def connected(self, peer: Peer) -> bool:
        """Whether this peer belongs to the trainer."""

    async def received(self, peer: Peer, message: Message, reader: asyncio.StreamReader) -> None:
        """Takes one message; a payload that follows it is read from `reader`."""

    def disconnected(self, peer: Peer) -> None:
        """The peer is gone."""


class Hub:
    """Accepts connections that know the trainer's secret."""

    def __init__(self, listener: Listener, secret: str) -> None:
        self._listener = listener
        self._secret = secret
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listens on a free port and returns it."""
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", 0, limit=MAX_LINE_BYTES, backlog=_BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accepts nobody any more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        no_delay(writer)
        peer = None
        try:
            hello = await asyncio.wait_for(receive(reader), CONNECT_S)
            # Secret first: nothing else of a stranger's message is looked at.
            if hello is None or not hmac.compare_digest(
                str(hello.get("secret")).encode(errors="replace"), self._secret.encode()
            ):
                return
            peer = Peer(writer, hello)
            if not self._listener.connected(peer):
                return
            while (message := await receive(reader)) is not None:
                await self._listener.received(peer, message, reader)
        except (WireError, ConnectionError, asyncio.TimeoutError):
            pass
        except asyncio.CancelledError:
            # The driver ends. asyncio would print a connection that was cancelled as a fault.
            pass
        finally:
            if peer is not None:
                self._listener.disconnected(peer)
            writer.close()
