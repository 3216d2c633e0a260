"""Who is at the other end of a unix socket, as the kernel says."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")  # pid, uid, gid


def uid_of(peer: socket.socket) -> int:
    """The uid that connected; SO_PEERCRED is filled in by the kernel and cannot be forged."""
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
