"""Host names that DNS rebinding cannot forge."""

from __future__ import annotations

import ipaddress


def is_own_name(host: str) -> bool:
    """Whether the Host of a request is localhost, a loopback address, or a name without a dot.

    A page of another site makes its browser ask under that site's name, which has a dot, whatever address the name
    resolves to (DNS rebinding).
    """
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = host.partition(":")
    if port and not port.isdecimal():
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        name = name.rstrip(".").lower()
        return name.endswith(".localhost") or (bool(name) and "." not in name and ":" not in name)
