"""The interface between the estimator and communication tables, which sizing.cells.comm.table implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sizing.base.estimate import Estimate


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A connection within a group of GPUs: their type, their number on each node, and the number of nodes.

    `gpu_type` is a name of the catalogue, or "cpu" (gloo between processes). A group of 4 GPUs of one node is
    (type, per_node=4, nodes=1).
    """

    gpu_type: str
    per_node: int
    nodes: int

    @property
    def size(self) -> int:
        """The number of ranks of the group."""
        return self.per_node * self.nodes


class Communication(Protocol):
    """The times of collectives."""

    def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
        """Return the seconds of one collective or "send_recv" of `nbytes`; raises NoTable if it was not measured."""
