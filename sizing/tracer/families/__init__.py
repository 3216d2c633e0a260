"""Models by their sizes, as chains of parts that are built one by one, so a stage allocates only its own weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Part:
    """One operator of a chain: its name, a function that builds it, and the shape of its input for a batch."""

    name: str
    make: Callable[[], nn.Module]
    input_shape: Callable[[int], tuple[int, ...]]


@dataclass(frozen=True)
class Chain:
    """The parts of a model in order.

    The first part takes `first(batch)`; the last also takes `targets(batch)` and returns the loss. `tied` says that the
    first and last part share their matrix; stages that hold only one of the two parts each have a copy.
    """

    parts: tuple[Part, ...]
    first: Callable[[int], torch.Tensor]
    targets: Callable[[int], torch.Tensor]
    tied: bool = False


class Whole(nn.Module):
    """All parts of a chain as one model, which maps the first input and the targets to the loss."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.make() for part in chain.parts)
        if chain.tied:
            last: Any = self.parts[-1]
            first: Any = self.parts[0]
            last.weight = first.weight

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        *inner, last = self.parts
        for part in inner:
            x = part(x)
        return last(x, targets)  # type: ignore[no-any-return]


def chain(sizes: dict[str, Any], tp: int) -> Chain:
    """Return the chain of a model; `sizes` are the fields of a ModelConfig or a WideResNet, as JSON has them."""
    if sizes["kind"] == "wide_resnet":
        from sizing.tracer.families import wide_resnet

        return wide_resnet.chain(sizes, tp)
    from sizing.tracer.families import transformer

    return transformer.chain(sizes, tp)
