"""The memory and files of the daemon and the drivers: how much they keep does not grow with the time they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

_FIRST = 2_000
_EACH = 400
"""The most that a process may keep, in items of its containers: by itself, and for each node and trainer."""

_BYTES_AN_HOUR = 20_000_000
_DEEPEST = 12
_OURS = ("bftd.", "elastic.", "slurm_plugin.", "milp.")
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def items_of(root: object) -> int:
    """Return how many items all containers have that an object of ours keeps, directly or through other such ones."""
    seen: set[int] = set()
    count, left = 0, [(root, 0)]
    while left:
        one, depth = left.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, _CONTAINERS):
            count += len(one)
            held = [*one.values()] if isinstance(one, Mapping) else [*one]
            left += [(item, depth + 1) for item in held]
        elif type(one).__module__.startswith(_OURS) and "simulation" not in type(one).__module__:
            fields = getattr(one, "__dict__", None) or {
                name: getattr(one, name, None) for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())
            }
            left += [(item, depth + 1) for item in fields.values()]
    return count


def broken(roots: Mapping[str, object], nodes: int, trainers: int) -> Iterator[str]:
    """Yield the processes, given by name with what they keep, that keep too much."""
    most = _FIRST + _EACH * (nodes + trainers)
    for name, root in roots.items():
        if (count := items_of(root)) > most:
            yield f"memory: {name} keeps {count} items, more than {most}"


def files(folder: Path, hours: float, trainers: int) -> Iterator[str]:
    """Yield files that are too large for the hours passed."""
    most = _BYTES_AN_HOUR * (1.0 + hours) * (1 + trainers)
    for path in sorted(folder.iterdir()):
        if path.is_file() and (size := path.stat().st_size) > most:
            yield f"files: {path.name} has {size} bytes after {hours:.1f} hours"
