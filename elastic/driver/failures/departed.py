"""Workers whose end may only be the consequence of a node that left the group. Pure.

The peers of a node that Slurm takes, or that is given back, lose their connections; under torchrun they fail because of
it. Under Horovod they go on, unless they are still connecting to each other: its library then aborts the process.
"""

from __future__ import annotations

from collections.abc import Collection


class Departures:
    """The order in which workers began and nodes left; pilots are named by their leases."""

    def __init__(self) -> None:
        self._here: frozenset[str] = frozenset()
        self._group: frozenset[str] = frozenset()
        self._began: dict[str, int] = {}
        self._departed = 0
        self._count = 0

    def look(self, here: Collection[str]) -> None:
        """Notes that `here` are the pilots that take part, or could, at present."""
        self._count += 1
        if self._here.difference(here):
            self._departed = self._count
        self._here = frozenset(here)

    def formed(self, group: Collection[str]) -> None:
        """Notes that a group of these pilots is formed; some may have left by the time its new workers begin."""
        self._group = frozenset(group)

    def began(self, lease: str) -> None:
        """Notes that workers begin on a pilot, with those of the last look, or in a group that others have left."""
        self._count += 1
        left = lease in self._group and self._group.difference(self._here)
        self._began[lease] = -1 if left else self._count

    def joined(self, lease: str) -> None:
        """Notes that workers on a pilot are in a group of those that were here at the last look."""
        self._count += 1
        self._began[lease] = self._count

    def excuse(self, lease: str) -> bool:
        """Whether a pilot has left since workers began on this one."""
        return lease in self._began and self._departed > self._began[lease]

    def forget(self, present: Collection[str]) -> None:
        """Keeps only what these pilots need."""
        self._began = {lease: began for lease, began in self._began.items() if lease in present}
