"""A model as a chain of operators: what each computes, and how much is alive between one and the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

GraphOrigin = Literal["export", "modules", "formula"]
"""How a graph was read: operator by operator (torch.export), by the modules that a forward pass calls, or worked out of
a model's sizes (sizing.cells.chain)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a forward pass, in its order. `name` is unique in its graph, `module` the path that it is in.

    `flops` are those of forward and backward, `across_bytes` what of the forward pass is alive after it and used by a
    later operator (what a cut behind it sends on, and its gradient back), both for the graph's batch. `parameters`
    counts the elements of the weights that it is the first to use.
    """

    name: str
    module: str
    flops: int
    across_bytes: int
    parameters: int


@dataclass(frozen=True)
class Graph:
    """All operators of a model, counted for `batch` samples; `note` says why it is by modules, where it is."""

    model: str
    batch: int
    operators: tuple[Operator, ...]
    origin: GraphOrigin
    note: str = ""

    @cached_property
    def flops(self) -> int:
        """Of a forward and backward pass of `batch` samples."""
        return sum(each.flops for each in self.operators)

    @cached_property
    def parameters(self) -> int:
        """Trainable elements."""
        return sum(each.parameters for each in self.operators)

    @cached_property
    def flops_before(self) -> tuple[int, ...]:
        """The FLOPs of all operators before each, and of all of them at the end."""
        return tuple(accumulate((each.flops for each in self.operators), initial=0))
