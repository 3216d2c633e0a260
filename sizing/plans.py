"""A plan: which GPUs of which partition a model is trained on, and how it is spread over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sizing.estimate import Estimate
from sizing.model.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train a model. `peak` are the bytes of one GPU, its `high` with the guard band on it; `step_s` is how
    long a step takes, `cost` what it costs in the inventory's unit; `sbatch` are the lines that ask Slurm for it.

    `why` says for each of these lines where it comes from. `start` is what Slurm says of when it could begin, in its
    own words, None where it was not asked. `micro_batch` is what of a GPU's `batch` is worked on at once, where
    gradients are accumulated over several. So many `runs` on just these GPUs say what it takes, and that processes took
    `host_bytes` of a node at most, None where none of them told.
    """

    partition: str
    gpu_type: str
    gpus: int
    nodes: int
    parallel: Parallel
    batch: int
    peak: Estimate
    gpu_bytes: int
    step_s: Estimate
    cost: Estimate
    sbatch: tuple[str, ...] = ()
    start: str | None = None
    why: tuple[str, ...] = ()
    micro_batch: int | None = None
    runs: int = 0
    host_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the step fits a GPU, with the guard band."""
        return self.peak.high <= self.gpu_bytes

    def to_json(self) -> dict[str, Any]:
        """The form of a plan in `bft size fit --json` and in the files that `bft size place` reads."""
        return {
            "partition": self.partition,
            "gpu_type": self.gpu_type,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "dp": self.parallel.dp,
            "tp": self.parallel.tp,
            "fsdp": self.parallel.fsdp,
            "batch": self.batch,
            "micro_batch": self.micro_batch if self.micro_batch is not None else self.batch,
            "peak_bytes": int(self.peak.value),
            "high_bytes": int(self.peak.high),
            "origin": self.peak.origin,
            "gpu_bytes": self.gpu_bytes,
            "fits": self.fits,
            "step_s": self.step_s.value,
            "step_low_s": self.step_s.low,
            "step_high_s": self.step_s.high,
            "step_origin": self.step_s.origin,
            "cost": self.cost.value,
            "ran": self.runs,
            "sbatch": list(self.sbatch),
            "why": list(self.why),
            "start": self.start,
        }
