"""What is harvested: which nodes, and which jobs there are pilots. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_plugin.types import Job, Node, Snapshot
from slurm_plugin.waiting import is_regular


@dataclass(frozen=True, slots=True)
class Harvest:
    """The nodes of `partition`, or every node of a snapshot where it is None; all jobs but pilots are regular ones."""

    partition: str | None
    is_pilot: Callable[[Job], bool]

    @classmethod
    def of(cls, partition: str) -> Harvest:
        """The nodes of a partition that pilots have for themselves: what asks for it alone is a pilot."""
        return cls(partition, lambda job: not is_regular(job, partition))

    def nodes(self, snapshot: Snapshot) -> dict[str, Node]:
        """The harvested nodes by name."""
        if self.partition is None:
            return snapshot.nodes
        return {name: node for name, node in snapshot.nodes.items() if self.partition in node.partitions}
