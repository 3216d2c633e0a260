"""The cost and the benefit so far of nodes that were earmarked for regular jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class EarmarkUsage:
    """Earmarks and node-seconds since the ledger began. None of the counters ever decreases.

    An earmark that did not lead to a start was wasted. A node is kept from the time when no pilot is left on it; `open`
    has by job the node-seconds so far of the present earmarks.
    """

    made: int = 0
    started: int = 0
    wasted: int = 0
    kept_node_seconds: float = 0.0
    wasted_node_seconds: float = 0.0
    open: Mapping[str, float] = field(default_factory=dict)

    def kept(self, node_seconds: Mapping[str, float]) -> EarmarkUsage:
        """Return the usage with the node-seconds, by job, that the present earmarks have kept for a while."""
        grown = {job: self.open.get(job, 0.0) + seconds for job, seconds in node_seconds.items()}
        return replace(self, kept_node_seconds=self.kept_node_seconds + sum(node_seconds.values()), open=grown)

    def ended(self, job: str, started: bool) -> EarmarkUsage:
        """Return the usage with the earmark of a job over."""
        wasted_s = 0.0 if started else self.open.get(job, 0.0)
        return replace(
            self,
            started=self.started + started,
            wasted=self.wasted + (not started),
            wasted_node_seconds=self.wasted_node_seconds + wasted_s,
            open={other: seconds for other, seconds in self.open.items() if other != job},
        )
