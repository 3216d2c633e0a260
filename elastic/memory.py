"""How much memory a node has free."""

from __future__ import annotations


def free_bytes() -> int | None:
    """What programs can have without others being pushed out, None where the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
