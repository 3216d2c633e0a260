"""The Cell of Crius: which GPUs and how many, and how the model is cut into pipeline stages on them."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators `first` to `last` (inclusive) of a graph on `gpus` GPUs; `across_bytes` is what it sends on.

    `flops` and `across_bytes` are for the graph's batch; the last stage sends nothing.
    """

    first: int
    last: int
    gpus: int
    flops: int
    across_bytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A job with GPU type, GPU count and stages fixed; dp and tp of each stage are open (Crius, section 4.2)."""

    gpu_type: str
    stages: tuple[Stage, ...]

    @property
    def gpus(self) -> int:
        """Of all stages together."""
        return sum(stage.gpus for stage in self.stages)


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """How one stage is spread over its GPUs: `dp` replicas of `tp` tensor-parallel GPUs."""

    dp: int
    tp: int

    @property
    def gpus(self) -> int:
        """Both together."""
        return self.dp * self.tp


@dataclass(frozen=True, slots=True)
class CellPlan:
    """A cell with a split for each stage, and what is estimated of it.

    `step_s` is one iteration of the whole global batch, `peaks` the bytes of one GPU of each stage (`high` with the
    guard band).
    """

    cell: Cell
    splits: tuple[Split, ...]
    micro_batches: int
    step_s: Estimate
    peaks: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """A cell's best sampled plan, None where none fits its GPUs; `tried` counts the plans that were assembled.

    `dropped` says for each stage which sampled splits do not fit, and by how many bytes.
    """

    cell: Cell
    best: CellPlan | None
    tried: int
    dropped: tuple[str, ...] = ()
