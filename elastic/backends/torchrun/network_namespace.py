"""A network of this process's own: no other process on the host can reach sockets that listen in it.

A user may make one if the kernel lets them have a user namespace. Sockets stay in the network that they were made in,
so one that was opened before still serves the host's.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_AND_RUNNING = 0x1 | 0x40


def leave_hosts_network() -> bool:
    """Move this process, which must still be single-threaded, to a network with only a loopback; returns success.

    The parent-death signal is reset by this.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with socket.socket() as sock:
        # If this fails, nothing in this network can be reached, and there is no way back.
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_AND_RUNNING))
    return True
