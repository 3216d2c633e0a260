"""The harvested nodes, and the test for pilots among the jobs there. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_plugin.pilots.pending_reasons import is_regular
from slurm_plugin.read.types import Job, Node, Snapshot


@dataclass(frozen=True, slots=True)
class Harvest:
    """The nodes of any of the `partitions`, or every node of a snapshot if they are None.

    All jobs but pilots are regular ones.
    """

    partitions: tuple[str, ...] | None
    is_pilot: Callable[[Job], bool]

    @classmethod
    def of(cls, *partitions: str) -> Harvest:
        """Return the harvest of partitions that pilots have for themselves: a job for one of them alone is a pilot."""
        return cls(partitions, lambda job: not all(is_regular(job, name) for name in partitions))

    def nodes(self, snapshot: Snapshot) -> dict[str, Node]:
        """Return the harvested nodes by name."""
        if self.partitions is None:
            return snapshot.nodes
        if len(self.partitions) == 1:
            (only,) = self.partitions
            return {name: node for name, node in snapshot.nodes.items() if only in node.partitions}
        wanted = frozenset(self.partitions)
        return {name: node for name, node in snapshot.nodes.items() if not wanted.isdisjoint(node.partitions)}
