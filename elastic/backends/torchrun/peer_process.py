"""The user of the process at the other end of a connection within this host, as the kernel knows it."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""An IPv6 socket that is connected to an IPv4 address is in the second one."""

_LOOKS = 3
"""A row may be missed if others come and go while the table is being read."""

_ESTABLISHED = "01"


def owner(connection: socket.socket) -> int | None:
    """Return the user id at the other end of an IPv4 connection; None if it is not on this host, or has hung up.

    The kernel shows a connection that its owner has closed as root's: such a row does not count.
    """
    far, near = connection.getpeername(), connection.getsockname()
    wanted = {(_plain(far), _plain(near)), (_mapped(far), _mapped(near))}
    for _ in range(_LOOKS):
        for table in _TABLES:
            uid = _look_up(table, wanted)
            if uid is not None:
                return uid
    return None


def _look_up(table: str, wanted: set[tuple[str, str]]) -> int | None:
    try:
        text = Path(table).read_text()
    except OSError:  # a host without IPv6
        return None
    for local, remote in wanted:
        # A text search, since a busy host has very many rows, and every worker of a node connects at once.
        found = text.find(f" {local} {remote} {_ESTABLISHED} ")
        if found >= 0:
            _, _, _, _, _, _, uid, _, inode, *_ = text[found : text.find("\n", found)].split()
            return int(uid) if inode != "0" else None
    return None


def _plain(address: tuple[str, int]) -> str:
    return _written(socket.inet_aton(address[0]), address[1])


def _mapped(address: tuple[str, int]) -> str:
    return _written(bytes(10) + b"\xff\xff" + socket.inet_aton(address[0]), address[1])


def _written(address: bytes, port: int) -> str:
    """Format an address as the kernel does: words of four bytes in this machine's order."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
