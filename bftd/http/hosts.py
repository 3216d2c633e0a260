"""Which names of a host no other site can point at this one: a browser is made to ask under a site's own name."""

from __future__ import annotations

import ipaddress


def is_own_name(host: str) -> bool:
    """Whether the Host of a request is localhost, a loopback address, or a name without a dot.

    A page of another site has its browser ask under that site's name, which has a dot, wherever the name leads (DNS
    rebinding).
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
