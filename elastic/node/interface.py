"""Which network interface a connection uses: gloo and NCCL must be told, and it differs from node to node."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

from elastic.link.address import plain


def interface_of(writer: asyncio.StreamWriter | None) -> str | None:
    """The name of the interface that holds the connection's local address; None when it cannot be told.

    A second address of an interface may have a label of its own ("eth0:1"): what is told is the interface's name.
    """
    if writer is None:
        return None
    import psutil  # here, because an agent is to be up before it is needed

    local = ip_address(plain(writer.get_extra_info("sockname")[0]))
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            held = ip_address(plain(address.address))
            # All of 127.0.0.0/8 is the loopback's, which shows one address of it.
            if held == local or (held.is_loopback and local.is_loopback):
                return str(name).partition(":")[0]
    return None
