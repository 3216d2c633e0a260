"""A plan: the GPUs and partition on which a model is trained, and its spread over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """One way to train a model.

    `peak` is the bytes of one GPU, its `high` with the guard band on it; `step_s` is the time of a step, `cost` its
    cost in the inventory's unit; `sbatch` are the lines that ask Slurm for it, and `why` has the reason for each of
    them. `start` is Slurm's answer on when it could begin, in its own words, None if it was not asked. `micro_batch` is
    the part of a GPU's `batch` that is processed at once, if gradients are accumulated over several. `runs` earlier
    jobs on exactly these GPUs gave its figures; their processes used at most `host_bytes` of a node, None if none of
    them reported it.
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
        """Return the form of a plan in `bft size fit --json` and in the files that `bft size place` reads."""
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
