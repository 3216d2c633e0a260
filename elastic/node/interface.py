"""Which network interface a connection uses: gloo and NCCL must be told, and it differs from node to node."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def interface_of(writer: asyncio.StreamWriter | None) -> str:
    """The name of the interface that holds the connection's local address; "lo" when it cannot be told."""
    if writer is None:
        return "lo"
    local = writer.get_extra_info("sockname")[0]
    if local.startswith("127."):
        return "lo"
    for _, name in socket.if_nameindex():
        if _address(name) == local:
            return name
    return "lo"


def _address(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
