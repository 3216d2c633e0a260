"""Models that are cut by hand over tensor-parallel ranks and pipeline stages, and the plans they are run with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """How a model is run: the blocks at which it is cut, replicas and tensor-parallel ranks of each stage."""

    name: str
    dp: int = 1
    tp: int = 1
    cuts: tuple[float, ...] = ()
    """The share of all blocks before each cut."""
    micro_batches: int = 1

    @property
    def ranks(self) -> int:
        """All together."""
        return self.dp * self.tp * (len(self.cuts) + 1)


@dataclass(frozen=True)
class Case:
    """A model by its sizes, and the global batch of an iteration."""

    name: str
    family: str
    batch: int
    sizes: dict[str, Any] = field(default_factory=dict)


TWO = (
    Plan("DP2", dp=2),
    Plan("TP2", tp=2),
    Plan("PP2, 8 micro-batches", cuts=(0.5,), micro_batches=8),
    Plan("PP2, uneven stages, 8 micro-batches", cuts=(0.25,), micro_batches=8),
    Plan("DP2, 4 micro-batches", dp=2, micro_batches=4),
    Plan("TP2, 4 micro-batches", tp=2, micro_batches=4),
)
"""Of two ranks."""

FOUR = (
    Plan("DP2 x TP2", dp=2, tp=2),
    Plan("PP2 x DP2, 8 micro-batches", dp=2, cuts=(0.5,), micro_batches=8),
    Plan("PP2 x TP2, 8 micro-batches", tp=2, cuts=(0.5,), micro_batches=8),
    Plan("PP4, 8 micro-batches", cuts=(0.25, 0.5, 0.75), micro_batches=8),
)
"""Of four, where there are as many cores."""

CASES = (
    Case("transformer, h=256", "transformer", 16, {"hidden": 256, "layers": 6, "heads": 4, "seq": 128, "vocab": 2048}),
    Case("transformer, h=512", "transformer", 16, {"hidden": 512, "layers": 4, "heads": 8, "seq": 64, "vocab": 4096}),
    Case("MLP-mixer, h=384", "mixer", 16, {"hidden": 384, "layers": 6, "tokens": 64, "across": 192}),
    Case("wide ResNet-16-4", "wide_resnet", 16, {"channels": 16, "width": 4, "blocks": 2, "image": 32}),
    Case("wide ResNet-10-8", "wide_resnet", 16, {"channels": 16, "width": 8, "blocks": 1, "image": 32}),
)


def blocks(case: Case, ranks: Any) -> list[Any]:
    """The chain of modules of a case, as one of `ranks` has it; the last returns a loss."""
    from benchmarks.cells.cases import models

    return models.FAMILIES[case.family](case.sizes, ranks)


def cut(case: Case, count: int, plan: Plan) -> list[tuple[int, int]]:
    """The first and last of `count` blocks of each stage of a plan; every stage has one at least."""
    ends = [0, *(round(share * count) for share in plan.cuts), count]
    for at in range(1, len(ends) - 1):
        ends[at] = min(max(ends[at], ends[at - 1] + 1), count - (len(ends) - 1 - at))
    return [(first, end - 1) for first, end in itertools.pairwise(ends)]
