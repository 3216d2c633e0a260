"""The servers that public sensitivity matrices were taken on."""

from __future__ import annotations

from sizing.pack.types import Servers

GB = 10**9


def papers(count: int) -> Servers:
    """So many of Synergy's servers: 8 GPUs (V100), 24 CPUs, 500 GB."""
    return Servers(count, gpus=8, cpus=24.0, memory_bytes=500.0 * GB)
