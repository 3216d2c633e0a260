"""A driver's address on the network: `host:port`, with an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress


def join_address(host: str, port: int) -> str:
    """Return the text for a host's name or address and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Split such a text into host, without brackets, and port; raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"a driver's address is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def plain(host: str) -> str:
    """Return an address in the form that all sockets of a host share: without a zone, and mapped IPv4 as IPv4."""
    bare = host.partition("%")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
