"""The driver's address for each node: that of the interface from which this host sends to the node.

A service node has several networks, and its own name may mean any of them, or the loopback. The route to the node tells
them apart, so each node gets an address of its own.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping

from elastic.base.errors import ElasticError, UsageError
from elastic.link.address import plain
from slurm_plugin.errors import SlurmError
from slurm_plugin.read.types import NodeAddress
from slurm_plugin.submission.shared_queries import SharedQuery

VARIABLE = "BFT_DRIVER_ADDRESS"

_READ_EVERY_S = 60.0
"""The pause between two reads of nodes' addresses: an administrator, or the boot of a cloud node, may change them."""

_UNKNOWN_EVERY_S = 5.0
"""The pause before Slurm is asked again for a node that it did not show."""

_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_DENIED = re.compile("permission denied", re.IGNORECASE)
_ANY_PORT = 9
# Nobody has these addresses (RFC 5737, RFC 3849): the route to them is the route to the outside.
_OUTSIDE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Unreachable(ElasticError):
    """No address is known by which a node reaches this host."""


def given_address() -> str:
    """Returns $BFT_DRIVER_ADDRESS, one name or address for all nodes; "" if it is not set. Raises UsageError."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return ""
    bare = given.removeprefix("[").removesuffix("]")
    address = _address(bare)
    if address is not None:
        if address.is_unspecified or address.is_multicast or _is_of_one_link(address):
            raise UsageError(f"{VARIABLE}={given} is no address at which nodes reach a host: give another one")
        return bare
    if not _NAME.fullmatch(given):
        raise UsageError(f"{VARIABLE} must be one name or address of this host, without a port, not {given!r}")
    try:
        socket.getaddrinfo(given, None)
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN:  # a name server that does not answer now says nothing about the name
            raise UsageError(f"{VARIABLE}={given} does not resolve on {_host_name()}: give an address") from None
    return given


class Routes:
    """This host's address for each node; any thread may ask.

    `nodes` reads Slurm's own list of nodes (it may raise SlurmError), `given` is an address for all of them. With
    `ipv4_only` only IPv4 addresses are used.
    """

    def __init__(
        self, nodes: Callable[[], Mapping[str, NodeAddress]], given: str = "", *, ipv4_only: bool = False
    ) -> None:
        self._nodes = nodes
        self._given = given
        self._ipv4_only = ipv4_only
        self._lock = threading.Lock()
        self._reading = SharedQuery(self._read)
        self._read_s = float("-inf")
        self._hidden = False
        self._where: Mapping[str, NodeAddress] = {}
        self._found: dict[str, str] = {}

    def to(self, node: str) -> str:
        """Returns the address of this host for `node`; raises Unreachable."""
        if self._given:
            return self._checked(node)
        where = self._of(node)
        with self._lock:
            found = self._found.get(node)
        if found is None:
            found = _source_for(node, where, self._ipv4_only)
            with self._lock:
                if self._hidden or self._where.get(node) == where:
                    self._found[node] = found
        return found

    def _checked(self, node: str) -> str:
        """Returns the given address; raises Unreachable if it cannot be right for this node."""
        address = _address(self._given)
        if self._ipv4_only and address is not None and address.version == 6:
            raise Unreachable(f"{VARIABLE}={self._given} is IPv6, and this back-end needs IPv4{advice()}")
        if address is not None and address.is_loopback and not _is_here(self._of(node)):
            raise Unreachable(f"{VARIABLE}={self._given} means {node} itself there{advice()}")
        return self._given

    def _of(self, node: str) -> NodeAddress:
        """Returns a node's address as Slurm shows it; with PrivateData=nodes it shows it to operators alone."""
        age_s = time.monotonic() - self._read_s
        unknown = node not in self._where and not self._hidden
        if age_s > _READ_EVERY_S or (unknown and age_s > _UNKNOWN_EVERY_S):
            try:
                self._reading.fresh()
            except SlurmError as error:
                raise Unreachable(f"Slurm does not say where {node} is: {error}") from None
        with self._lock:
            if self._hidden:  # a node's name is its host's unless a site sets another
                return NodeAddress(node, node)
            if node not in self._where:
                raise Unreachable(f"Slurm shows no node {node}{advice()}")
            return self._where[node]

    def _read(self) -> None:
        if time.monotonic() - self._read_s < _UNKNOWN_EVERY_S:  # another thread has read while this one waited
            return
        where: Mapping[str, NodeAddress] = {}
        hidden = False
        try:
            where = self._nodes()
        except SlurmError as error:
            hidden = _DENIED.search(str(error)) is not None
            if not hidden:
                raise
        with self._lock:
            self._where, self._hidden, self._read_s = where, hidden, time.monotonic()
            self._found.clear()


def _source_for(node: str, where: NodeAddress, ipv4_only: bool) -> str:
    """Returns the address from which this host sends to a node; raises Unreachable."""
    try:
        found = socket.getaddrinfo(where.address, _ANY_PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        raise Unreachable(
            f"{where.address}, the address of {node}, does not resolve on {_host_name()}{advice()}"
        ) from None
    families = [socket.AF_INET] if ipv4_only else [socket.AF_INET, socket.AF_INET6]
    # IPv4 first: more libraries support it.
    found = sorted((entry for entry in found if entry[0] in families), key=lambda entry: families.index(entry[0]))
    if not found:
        raise Unreachable(f"{node} has no IPv4 address, and this back-end needs one{advice()}")
    why = "no route to it"
    for family, *_, target in found:
        source = _source(family, target)
        if source is None or _is_of_one_link(source):
            continue
        if not source.is_loopback:
            return str(source)
        if not _is_here(where):
            why = "its address is a loopback one, and it is another host"
            continue
        # A host's own name often means its loopback. Its ranks would wait there for those of other hosts.
        outward = _source(family, (_OUTSIDE[family], _ANY_PORT)) if _address(where.address) is None else None
        return str(source if outward is None or _is_of_one_link(outward) else outward)
    raise Unreachable(f"{_host_name()} has no address for {node} ({where.address}): {why}{advice()}")


def _source(family: int, target: tuple[object, ...]) -> Address | None:
    """Returns the local address of the route to a target; connecting a datagram socket sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)
            return _address(plain(sock.getsockname()[0]))
    except OSError:
        return None


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_of_one_link(address: Address) -> bool:
    """Whether an IPv6 address is valid on one link alone: another host cannot use it as it is."""
    return address.version == 6 and address.is_link_local


def _is_here(where: NodeAddress) -> bool:
    """Whether a node is this very host, as far as names tell."""
    return where.host_name.partition(".")[0] == _host_name().partition(".")[0]


def _host_name() -> str:
    return socket.gethostname()


def advice() -> str:
    """Returns advice for a node that does not reach this host: the end of a sentence."""
    return f"; set {VARIABLE} to an address of {_host_name()} that nodes reach"
