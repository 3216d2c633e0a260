"""The cost and the benefit so far of rooms that were made for regular jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class EarmarkUsage:
    """Rooms and node-seconds since the ledger began. None of the counters ever decreases.

    A room that did not lead to a start was in vain. A node is kept from the time when no pilot is left on it; `open`
    has by job the node-seconds so far of the present rooms.
    """

    made: int = 0
    started: int = 0
    in_vain: int = 0
    kept_node_seconds: float = 0.0
    vain_node_seconds: float = 0.0
    open: Mapping[str, float] = field(default_factory=dict)

    def kept(self, node_seconds: Mapping[str, float]) -> EarmarkUsage:
        """Return the usage with the node-seconds, by job, that the present rooms have kept for a while."""
        grown = {job: self.open.get(job, 0.0) + seconds for job, seconds in node_seconds.items()}
        return replace(self, kept_node_seconds=self.kept_node_seconds + sum(node_seconds.values()), open=grown)

    def ended(self, job: str, started: bool) -> EarmarkUsage:
        """Return the usage with the room of a job over."""
        vain_s = 0.0 if started else self.open.get(job, 0.0)
        return replace(
            self,
            started=self.started + started,
            in_vain=self.in_vain + (not started),
            vain_node_seconds=self.vain_node_seconds + vain_s,
            open={other: seconds for other, seconds in self.open.items() if other != job},
        )
