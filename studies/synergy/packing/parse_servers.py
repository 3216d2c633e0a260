"""Servers from a text of GPUs/CPUs/GB."""

from __future__ import annotations

from sizing.base.errors import UsageError
from studies.synergy.packing.types import Servers

GB = 10**9
PAPERS = "8/24/500"
"""GPUs, CPUs and GB of Synergy's servers (of V100), on which the public matrices were taken."""
_MOST_GPUS = 64
_MOST = 1e9


def papers(count: int) -> Servers:
    """Return `count` of Synergy's servers."""
    return servers_of(PAPERS, count)


def servers_of(text: str, count: int) -> Servers:
    """Return `count` servers of GPUS/CPUS/GB; raise UsageError, one line, for an invalid text."""
    try:
        gpus, cpus, memory_gb = (float(part) for part in text.split("/"))
    except ValueError:
        gpus = cpus = memory_gb = 0.0
    if not (1 <= gpus <= _MOST_GPUS and gpus == int(gpus) and 0 < cpus <= _MOST and 0 < memory_gb <= _MOST):
        raise UsageError(f"--server {text[:40]!r}: give a server's GPUs/CPUs/GB, as in {PAPERS}")
    return Servers(count, int(gpus), cpus, memory_gb * GB)
