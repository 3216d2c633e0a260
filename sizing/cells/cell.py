"""The Cell of Crius: a type and number of GPUs, and the model cut into pipeline stages on them."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage: operators `first` to `last` (inclusive) of a graph on `gpus` GPUs.

    `across_bytes` is sent to the next stage; the last stage sends nothing. It and `flops` are for the graph's batch.
    """

    first: int
    last: int
    gpus: int
    flops: int
    across_bytes: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A job with fixed GPU type, GPU count and stages; dp and tp of each stage are open (Crius, section 4.2)."""

    gpu_type: str
    stages: tuple[Stage, ...]

    @property
    def gpus(self) -> int:
        """The GPUs of all stages together."""
        return sum(stage.gpus for stage in self.stages)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """A cell with a split for each stage, and the estimates for it.

    `step_s` is one iteration of the whole global batch, `peaks` the peak bytes of one GPU of each stage (`high` with
    the guard band).
    """

    cell: Cell
    splits: tuple[Parallel, ...]
    micro_batches: int
    step_s: Estimate
    peaks: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """A cell's best sampled plan, or None if none fits its GPUs; `tried` is the number of plans compared.

    `dropped` lists, by stage, the sampled splits that do not fit, and by how many bytes.
    """

    cell: Cell
    best: CellPlan | None
    tried: int
    dropped: tuple[str, ...] = ()
