"""The limit of open files in a driver, which has a socket for each agent and worker, and a pipe for each srun.

The usual limit of 1024 exists for programs that call select(); the programs that a driver starts get it back.
"""

from __future__ import annotations

import contextlib
import resource

MOST = 1 << 16
"""Enough for the largest trainer. With a hard limit of a thousand million, programs that close all files one by one
would take minutes to start."""

_given: list[tuple[int, int]] = []
"""The limits that this process started with, once it has raised them."""


def raise_limit() -> int:
    """Raise the limit of this process as far as allowed; returns how many files it may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _given[:] = _given or [(soft, hard)]
    return limit()


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def ordinary_limit() -> None:
    """Give a child, between fork and exec, the limit that its parent began with; srun passes it on to the node."""
    if _given:
        resource.setrlimit(resource.RLIMIT_NOFILE, _given[0])
