"""What the estimator asks of communication tables (sizing.cells.comm has them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sizing.estimate import Estimate


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A way between GPUs: their type, how many of them a group has on each node, and on how many nodes it is.

    `gpu_type` is a catalogue's name, or "cpu" (gloo between processes). A group of 4 GPUs of one node is
    (type, per_node=4, nodes=1).
    """

    gpu_type: str
    per_node: int
    nodes: int

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.per_node * self.nodes


class Communication(Protocol):
    """How long collectives take."""

    def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
        """Seconds of one collective or "send_recv" of so many bytes; raises NoTable where nothing was measured."""
