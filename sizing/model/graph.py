"""A model as a chain of operators, with the work of each and the bytes alive between one and the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

GraphOrigin = Literal["export", "modules", "formula"]
"""The origin of a graph: read operator by operator (torch.export), read by the modules that a forward pass calls, or
computed from a model's sizes (sizing.cells.size_graph)."""

GRAPH_BATCH = 8
"""The batch with which a model is read: its operators are the same for any batch."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a forward pass. `name` is unique in its graph, `module` the path of the module that it is in.

    `flops` are those of forward and backward. `across_bytes` are the values that are alive after it and used by a later
    operator: a cut behind it sends them on, and their gradients back. Both are for the graph's batch. `parameters`
    counts the elements of the weights that it is the first to use.
    """

    name: str
    module: str
    flops: int
    across_bytes: int
    parameters: int


@dataclass(frozen=True)
class Graph:
    """All operators of a model in order, counted for `batch` samples; `note` says why it is by modules, if it is."""

    model: str
    batch: int
    operators: tuple[Operator, ...]
    origin: GraphOrigin
    note: str = ""

    @cached_property
    def flops(self) -> int:
        """The FLOPs of a forward and backward pass of `batch` samples."""
        return sum(each.flops for each in self.operators)

    @cached_property
    def parameters(self) -> int:
        """The number of trainable elements."""
        return sum(each.parameters for each in self.operators)

    @cached_property
    def flops_before(self) -> tuple[int, ...]:
        """The FLOPs of all operators before each, followed by those of all operators."""
        return tuple(accumulate((each.flops for each in self.operators), initial=0))
