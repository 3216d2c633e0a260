"""Telling systemd how the daemon is: the sd_notify protocol over $NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import math
import os
import socket


def notify(*lines: str) -> None:
    """Send lines such as READY=1 to the service manager; without one nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":  # the abstract namespace
        address = "\0" + address[1:]
    # a service manager that does not listen is no reason to stop harvesting
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto("\n".join(lines).encode(), address)


def watchdog_s() -> float:
    """Within which time the service manager wants to hear WATCHDOG=1; infinite without one that does."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) > 0 else math.inf
