"""The node process's link to its agent: JSON lines over an inherited socket."""

from __future__ import annotations

import os
import socket
from multiprocessing.connection import wait

from elastic.link.wire import MAX_LINE_BYTES, Message, decode, encode


class AgentLink:
    """A single-threaded link that can be waited on together with child processes."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._buffer = b""

    @classmethod
    def opened(cls, where: str) -> AgentLink:
        """Open the link at a descriptor's number, or from inside a container at a path, with the agent's environment.

        Raises OSError.
        """
        if where.isdecimal():
            return cls(int(where))
        sock = socket.socket(socket.AF_UNIX)
        # A socket's name must be short, but a folder's may be long.
        folder = os.open(os.path.dirname(where), os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(where)}")
        finally:
            os.close(folder)
        data, descriptors, _, _ = socket.recv_fds(sock, MAX_LINE_BYTES, 1)
        for output in descriptors:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
        link = cls(sock.detach())
        link._buffer = data
        message = link.poll(None)
        assert message is not None
        os.environ.update(message["variables"])
        return link

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message) -> None:
        """Send one message; raises OSError if the agent is gone (the kernel then ends this process as well)."""
        self._sock.sendall(encode(message))

    def poll(self, timeout_s: float | None = 0.0) -> Message | None:
        """Return the next message, or None if there is none within the time; raises EOFError if the agent is gone."""
        while b"\n" not in self._buffer:
            if timeout_s is not None and not wait([self._sock], timeout_s):
                return None
            data = self._sock.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line)

    def close_in_child(self) -> None:
        """Close the agent's socket in a worker: otherwise the agent could not see the end of the node process."""
        self._sock.close()
