"""Node names as users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bftd.simulation.trace.errors import TraceError

# "0-1023,2000": ranges of numbers, which ClusterShell would take for one name.
_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
# A valid node name.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# The most numbers that are expanded, far beyond any cluster.
_MOST_NODES = 10_000_000
_SHOWN = 80  # of a part; a longer one is no range of nodes


def listed(text: str) -> list[str]:
    """List the names of a node set, or of ranges of numbers; raise TraceError for anything else."""
    text = text.strip()
    if _NUMBERS.fullmatch(text):
        return _numbers(text)
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.nodeset import expand

    try:
        names = expand(text)
    except SlurmError as error:
        raise TraceError(str(error)) from None
    check(names)
    return names


def check(names: Iterable[str]) -> None:
    """Raise TraceError for the first name that is not a valid node name."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise TraceError(f"not a node name: {name[:80]!r}")


def _numbers(text: str) -> list[str]:
    ranges, count = list[range](), 0
    for part in text.split(","):
        first, _, last = part[:_SHOWN].partition("-")
        found = range(int(first), int(last or first) + 1)
        count += found.stop - found.start
        if found.stop <= found.start or count > _MOST_NODES:
            raise TraceError(f"not a range of nodes: {part[:_SHOWN]}")
        ranges.append(found)
    return [str(number) for found in ranges for number in found]
