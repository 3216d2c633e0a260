"""Ports for servers of tests."""

from __future__ import annotations

from contextlib import ExitStack

from slurm_plugin.sandbox.ports import reserved_ports

_CLAIMS = ExitStack()


def free_port() -> int:
    """A port of this host that no client's socket takes, and that no other test is given while this process runs."""
    return _CLAIMS.enter_context(reserved_ports(1))[0]
