"""The sd_notify protocol over $NOTIFY_SOCKET, which tells systemd the daemon's state."""

from __future__ import annotations

import contextlib
import math
import os
import socket


def notify(*lines: str) -> None:
    """Send lines such as READY=1 to the service manager; does nothing if there is none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":  # the abstract namespace
        address = "\0" + address[1:]
    # A service manager that does not listen is no reason to stop harvesting, nor is one that is stuck.
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
        sender.sendto("\n".join(lines).encode(), address)


def watchdog_s() -> float:
    """Return the seconds within which the service manager expects WATCHDOG=1; infinity if it expects none."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) > 0 else math.inf
