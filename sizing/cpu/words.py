"""Words for what a profile is about."""

from __future__ import annotations


def cpus_in_words(count: float) -> str:
    """Return a number of CPUs."""
    return f"{count:g} CPU" if count == 1 else f"{count:g} CPUs"


def age(seconds: float) -> str:
    """Format an age roughly, in the largest unit of which it has at least two."""
    for unit, length_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
