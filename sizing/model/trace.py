"""What the trace of a training step says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sizing.model.parallel import Parallel

Target = Literal["cuda", "cpu"]
"""Whose kernels are assumed: a GPU's (what is asked for), or those of the CPU, which a trace can be checked against."""

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]
CATEGORIES: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "activations", "temporary")


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of one operator in a step: how often, and their floating point operations and bytes moved together.

    `precision` is what a GPU would compute its products in (fp64, fp32, tf32, fp16, bf16), "" where it has none.
    """

    name: str
    calls: int
    flops: int
    bytes: int
    precision: str = ""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One rank's training step, in the second of two traced steps and so with the optimizer's state in place.

    `peak_bytes` is the most that tensors held at once over both steps, `by_category` what they held at that moment and
    adds up to it. `parameters` counts the elements of this rank's trainable tensors. `collectives` are the bytes that
    this rank hands to each kind of collective in a step, in so many `collective_calls`. Of `upper_bounds` operators the
    result is as large as it may be, not as it is: what a mask selects is not known. `trace_s` is how long it took.
    """

    batch: int
    parallel: Parallel
    target: Target
    peak_bytes: int
    by_category: Mapping[Category, int]
    parameters: int
    operators: tuple[Operator, ...]
    collectives: Mapping[str, int]
    torch: str
    trace_s: float
    collective_calls: Mapping[str, int] = field(default_factory=dict)
    upper_bounds: int = 0

    @property
    def flops(self) -> int:
        """The floating point operations of a step on this rank."""
        return sum(each.flops for each in self.operators)
