"""Blocks of free TCP ports, safe against another private cluster that starts at the same moment."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from slurm_plugin.errors import SandboxError

# Below Linux's range for outgoing connections, so that no client socket takes a port between the check and its use.
_LOWEST, _HIGHEST = 15000, 32000
_ATTEMPTS = 50


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Find `count` consecutive free ports and keep other sandboxes off them until the block ends.

    Daemons must be listening by then. Raise SandboxError if no such block is found.
    """
    for _ in range(_ATTEMPTS):
        first = random.randrange(_LOWEST, _HIGHEST - count)
        ports = list(range(first, first + count))
        with ExitStack() as claims:
            if all(_claim(claims, port) for port in ports) and all(_is_free(port) for port in ports):
                yield ports
                return
    raise SandboxError(f"no {count} free ports in a row between {_LOWEST} and {_HIGHEST}: end some listeners")


def _claim(claims: ExitStack, port: int) -> bool:
    """Claim a port machine-wide by an abstract socket, which ends with this process and leaves no file."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    claims.callback(claim.close)
    try:
        claim.bind(f"\0bft-sandbox-port-{port}")
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm's daemons do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
