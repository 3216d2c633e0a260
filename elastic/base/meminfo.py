"""The free memory of a node."""

from __future__ import annotations


def free_bytes() -> int | None:
    """The memory that programs can have without evicting others' pages; None if the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
