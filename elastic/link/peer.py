"""The driver's end of a sealed connection; see elastic.link.authentication."""

from __future__ import annotations

import asyncio

from elastic.base.timing import AGENT_LINK_S, WORKER_LINK_S
from elastic.link.address import plain
from elastic.link.authentication import Seal
from elastic.link.wire import Message, encode, notice_silence


class Peer:
    """A connection to the driver from an agent or a worker of the trainer; messages to it are sealed."""

    def __init__(self, writer: asyncio.StreamWriter, hello: Message, seal: Seal) -> None:
        self.writer = writer
        self.hello = hello
        self._seal = seal

    def send(self, message: Message) -> None:
        """Send without waiting; the reader notices if the peer is gone."""
        if not self.writer.is_closing():
            self.writer.write(self._seal.line(encode(message)))

    @property
    def address(self) -> str:
        """The address that the peer connected from; IPv4 as such, even on a socket that serves IPv6."""
        return plain(str(self.writer.get_extra_info("peername")[0]))

    def watch(self) -> None:
        """Have the connection end if the other end is silent for too long, even without a sign that it is gone."""
        within_s = AGENT_LINK_S if self.hello.get("role") == "agent" else WORKER_LINK_S
        notice_silence(self.writer.get_extra_info("socket"), within_s)

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()

    def abandon(self) -> None:
        """Drop the connection of a peer that takes nothing any more: unsent data is lost."""
        self.writer.transport.abort()
