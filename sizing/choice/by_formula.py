"""Plans by the closed formula: a model's sizes at any spread and batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sizing.base.errors import UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.memory import formula
from sizing.memory.peak import MemoryPeak
from sizing.model import config
from sizing.model.config import ModelConfig
from sizing.step_time import datasheet
from sizing.step_time.datasheet import StepWork

OPERATORS_A_LAYER, OPERATORS_AROUND = 150, 60
"""Operators started forward and backward, views among them, per layer of a transformer and outside its layers.

Traced for GPT under autocast (benchmarks/sizing/formula_steps.py). Recomputed layers count half as much again.
"""


@dataclass(frozen=True)
class Formula:
    """A model given by its sizes.

    With a `fixed` micro-batch a rank accumulates gradients over as many micro-batches as its batch has. Without one,
    its batch is cut into as many micro-batches as the model's `accumulation` says.
    """

    model: ModelConfig
    fixed: int | None = None

    @property
    def precision(self) -> str:
        """The precision in the configuration."""
        return self.model.precision

    def micro_batch(self, parallel: Parallel, batch: int) -> int:
        """Return the part of a rank's batch that is processed at once; all of it if it cannot be cut so."""
        placed = self._placed(parallel, batch)
        return batch if placed is None else placed.batch

    def peak(self, parallel: Parallel, batch: int) -> Estimate | None:
        """Return the peak by formula; None if the model cannot be spread so."""
        found = self.memory(parallel, batch)
        return None if found is None else found.peak

    def memory(self, parallel: Parallel, batch: int) -> MemoryPeak | None:
        """Return the peak with its parts."""
        placed = self._placed(parallel, batch)
        return None if placed is None else _memory(placed)

    def work(self, parallel: Parallel, batch: int) -> StepWork | None:
        """Return the work by formula; None if the model cannot be spread so."""
        placed = self._placed(parallel, batch)
        if placed is None:
            return None
        alone = config.collective_bytes(replace(placed, parallel=Parallel(tp=parallel.tp)))
        moved = config.collective_bytes(placed)
        others = {kind: count - alone.get(kind, 0) for kind, count in moved.items()}
        passes, again = placed.accumulation, 1.5 if placed.recompute == "full" else 1.0
        calls = passes * (placed.layers * OPERATORS_A_LAYER * again + OPERATORS_AROUND)
        sums = passes * config.tensor_sums(placed)
        return datasheet.configured(config.step_flops(placed), parallel, alone, others, calls, sums, passes)

    def checked(self, parallel: Parallel, batch: int) -> ModelConfig:
        """Return the model with a rank's batch and its spread; raise UsageError if that is impossible."""
        if self.fixed is not None:
            micro = min(self.fixed, batch)
            pieces, rest = divmod(batch, micro)
        else:
            pieces = self.model.accumulation
            micro, rest = divmod(batch, pieces)
        if rest or micro < 1:
            cut = f"micro-batches of {self.fixed}" if self.fixed is not None else f"{pieces} micro-batches"
            raise UsageError(f"a batch of {batch} a GPU cannot be cut into {cut}; choose a multiple")
        return replace(self.model, batch=micro, accumulation=pieces, parallel=parallel)

    def _placed(self, parallel: Parallel, batch: int) -> ModelConfig | None:
        try:
            placed = self.checked(parallel, batch)
            _memory(placed)
        except UsageError:
            return None
        return placed


@lru_cache(maxsize=4096)
def _memory(model: ModelConfig) -> MemoryPeak:
    return formula.peak_of(model)
