"""Which ends of workers may be no more than the consequence of a node that left the group. Pure.

The peers of a node that Slurm takes, or that is given back, lose their connections; under torchrun they fail of it.
"""

from __future__ import annotations

from collections.abc import Collection


class Departures:
    """The order in which workers began and nodes left; pilots are named by their leases."""

    def __init__(self) -> None:
        self._here: frozenset[str] = frozenset()
        self._began: dict[str, int] = {}
        self._departed = 0
        self._count = 0

    def look(self, here: Collection[str]) -> None:
        """`here` are the pilots that take part, or could, at present."""
        self._count += 1
        if self._here.difference(here):
            self._departed = self._count
        self._here = frozenset(here)

    def began(self, lease: str) -> None:
        """Workers begin on a pilot, or begin anew in a group, with those that were here at the last look."""
        self._count += 1
        self._began[lease] = self._count

    def excuse(self, lease: str) -> bool:
        """Whether somebody has left since workers began on this pilot."""
        return lease in self._began and self._departed > self._began[lease]

    def forget(self, present: Collection[str]) -> None:
        """Keeps only what these pilots need."""
        self._began = {lease: began for lease, began in self._began.items() if lease in present}
