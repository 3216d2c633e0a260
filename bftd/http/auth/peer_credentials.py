"""The uid at the other end of a unix socket, from the kernel."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("3i")  # pid, uid, gid


def uid_of(peer: socket.socket) -> int:
    """Return the uid that connected; the kernel fills in SO_PEERCRED, which cannot be forged."""
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
