"""The trace of a training step, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sizing.base.parallel import Parallel

Target = Literal["cuda", "cpu"]
"""The device whose kernels a trace assumes: a GPU (the purpose), or the CPU (to check a trace against a real run)."""

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]
CATEGORIES: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "activations", "temporary")


@dataclass(frozen=True, slots=True)
class OperatorTotals:
    """All calls of one operator in a step: their number and their total floating point operations and bytes moved.

    `precision` is that of the products on a GPU (fp64, fp32, tf32, fp16, bf16), or "" for an operator without products.
    """

    name: str
    calls: int
    flops: int
    bytes: int
    precision: str = ""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One rank's training step: the second of two traced steps, so that the optimizer's state is in place.

    `peak_bytes` is the most that tensors held at once over both steps; `by_category` splits the bytes at that moment
    and adds up to it. `parameters` counts the elements of this rank's trainable tensors. `collectives` are the bytes
    that this rank hands to each kind of collective in a step, in `collective_calls` calls. `upper_bounds` counts the
    operators whose result has its largest possible size, because it is unknown what a mask selects. `trace_s` is the
    duration of the trace.
    """

    batch: int
    parallel: Parallel
    target: Target
    peak_bytes: int
    by_category: Mapping[Category, int]
    parameters: int
    operators: tuple[OperatorTotals, ...]
    collectives: Mapping[str, int]
    torch: str
    trace_s: float
    collective_calls: Mapping[str, int] = field(default_factory=dict)
    upper_bounds: int = 0

    @property
    def flops(self) -> int:
        """The number of floating point operations of a step on this rank."""
        return sum(each.flops for each in self.operators)
