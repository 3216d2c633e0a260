"""A daemon's address: the path of its unix socket, or `[user@]host:port` with the user that it runs as."""

from __future__ import annotations

import ipaddress

DEFAULT_USER = "bftd"


def is_path(address: str) -> bool:
    """Whether an address is that of a unix socket."""
    return "/" in address


def split_address(address: str) -> tuple[str, str, int]:
    """Return user, host and port of `[user@]host:port`; raises ValueError."""
    user, _, where = address.rpartition("@")
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ValueError(f"the daemon's address must be [user@]host:port or the path of its socket, not {address!r}")
    return user or DEFAULT_USER, host.strip("[]"), int(port)


def endpoint(name: tuple[object, ...]) -> str:
    """Format one end of a TCP connection, from getsockname or getpeername, as `IP:port`, the same on both hosts."""
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return f"{address.ipv4_mapped}:{name[1]}" if address.ipv4_mapped else f"[{address}]:{name[1]}"
    return f"{address}:{name[1]}"
