"""The network interface of a connection: gloo and NCCL must be told its name, and it differs from node to node."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

from elastic.link.address import plain


def interface_of(writer: asyncio.StreamWriter | None) -> str | None:
    """Return the name of the interface that holds the connection's local address; None if it is unknown.

    A second address of an interface may have a label of its own ("eth0:1"): the interface's name is returned.
    """
    if writer is None:
        return None
    import psutil  # imported here, as an agent has to be up before it is needed

    local = ip_address(plain(writer.get_extra_info("sockname")[0]))
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            held = ip_address(plain(address.address))
            # All of 127.0.0.0/8 belongs to the loopback interface, which shows one address of it.
            if held == local or (held.is_loopback and local.is_loopback):
                return str(name).partition(":")[0]
    return None
