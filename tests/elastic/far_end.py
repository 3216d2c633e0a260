"""The driver's end of a sealed connection, by hand: what agents and workers are tested against."""

from __future__ import annotations

import socket

from elastic.link.authentication import PROOF_BYTES, Examination
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from tests.support.waiting import STILL_S

SECRET = "5e5a3e"


class FarEnd(BlockingChannel):
    """A driver that can also break the rules."""

    def send_raw(self, data: bytes) -> None:
        """Sends bytes without a seal."""
        self._sock.sendall(data)

    def shutdown(self) -> None:
        """Hangs up, also for a read that waits."""
        self._sock.shutdown(socket.SHUT_RDWR)


def accepted(server: socket.socket, secret: str = SECRET) -> tuple[FarEnd, Message]:
    """The next connection, both ends proved, and its hello; raises WireError when the other end proves nothing."""
    sock, _ = server.accept()
    sock.settimeout(STILL_S)
    examination = Examination(secret, line_of(sock))
    sock.sendall(examination.challenge)
    return FarEnd(sock, examination.seals(exactly(sock, PROOF_BYTES))), examination.about


def line_of(sock: socket.socket) -> bytes:
    """The next line, nothing read beyond it; what there is of it when the other end hangs up."""
    line = b""
    while not line.endswith(b"\n") and (byte := sock.recv(1)):
        line += byte
    return line


def exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """So many bytes, fewer when the other end hangs up."""
    data = b""
    while len(data) < size_bytes and (piece := sock.recv(size_bytes - len(data))):
        data += piece
    return data
