"""The driver's end of a sealed connection; see elastic.link.seal."""

from __future__ import annotations

import asyncio

from elastic.link.address import plain
from elastic.link.seal import Seal
from elastic.link.wire import Message, encode, notice_silence
from elastic.timing import AGENT_LINK_S, WORKER_LINK_S


class Peer:
    """One connection of the trainer's, an agent's or a worker's; what is sent is sealed."""

    def __init__(self, writer: asyncio.StreamWriter, hello: Message, seal: Seal) -> None:
        self.writer = writer
        self.hello = hello
        self._seal = seal

    def send(self, message: Message) -> None:
        """Sends without waiting; a peer that is gone is noticed by its reader."""
        if not self.writer.is_closing():
            self.writer.write(self._seal.line(encode(message)))

    @property
    def address(self) -> str:
        """Where the peer connected from; an IPv4 address as such, also on a socket that serves IPv6."""
        return plain(str(self.writer.get_extra_info("peername")[0]))

    def watch(self) -> None:
        """Has the connection end when the other end is silent for too long, also where nobody says that it is gone."""
        within_s = AGENT_LINK_S if self.hello.get("role") == "agent" else WORKER_LINK_S
        notice_silence(self.writer.get_extra_info("socket"), within_s)

    def close(self) -> None:
        """Drops the connection."""
        self.writer.close()

    def abandon(self) -> None:
        """Drops the connection of a peer that takes nothing any more: what was not sent yet never is."""
        self.writer.transport.abort()
