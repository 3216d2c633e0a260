"""Where a daemon is: the path of its unix socket, or `[user@]host:port` with the user that it runs as."""

from __future__ import annotations

import ipaddress

DEFAULT_USER = "bftd"


def is_path(address: str) -> bool:
    """Whether an address is that of a unix socket."""
    return "/" in address


def split_address(address: str) -> tuple[str, str, int]:
    """User, host and port of `[user@]host:port`; raises ValueError."""
    user, _, where = address.rpartition("@")
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"the daemon's address must be [user@]host:port or the path of its socket, not {address!r}")
    return user or DEFAULT_USER, host.strip("[]"), int(port)


def endpoint(name: tuple[object, ...]) -> str:
    """One end of a TCP connection, as getsockname and getpeername tell it, the same on both hosts: `IP:port`."""
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return f"{address.ipv4_mapped}:{name[1]}" if address.ipv4_mapped else f"[{address}]:{name[1]}"
    return f"{address}:{name[1]}"
