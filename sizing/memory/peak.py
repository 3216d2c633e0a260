"""The peak of one GPU's memory as `bft size` reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sizing.base.estimate import Estimate, Origin
from sizing.base.parallel import Parallel
from sizing.model.trace import CATEGORIES, Category

_RESERVE_SHARE = 0.06
_RESERVE_BYTES = 3 * 2**29
"""The guard band beyond the tensors.

It is at least 1.5 GiB for the CUDA context, NCCL's buffers and torch's own cache, and 6 % of the tensors if those are
large, for the gaps between blocks.
"""

FORMULA_LOW_SHARE = 0.75
"""The least share of the real peak that the formula may give: 76 % at worst for the measured peaks."""


def guarded_bytes(peak_bytes: float, origin: Origin = "traced") -> int:
    """Return the memory a GPU needs for tensors of `peak_bytes`; by formula the band is as wide as its errors."""
    share = 1 / FORMULA_LOW_SHARE - 1 if origin == "formula" else _RESERVE_SHARE
    return int(peak_bytes + max(share * peak_bytes, _RESERVE_BYTES))


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The peak of one rank's tensors in bytes, its parts, and MARP's number for comparison.

    `peak` is traced or by formula; its `high` is the memory that a GPU needs (`guarded_bytes`). `marp_bytes` is None if
    the model's sizes are unknown. `why` says why the better method was not used, "" if it was. With `upper_bounds` the
    peak is itself an upper bound, as in `StepTrace`.
    """

    peak: Estimate
    by_category: Mapping[Category, int]
    parallel: Parallel
    batch: int
    marp_bytes: int | None = None
    trace_s: float | None = None
    why: str = ""
    upper_bounds: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form of `bft size mem --json`."""
        return {
            "peak_bytes": int(self.peak.value),
            "low_bytes": int(self.peak.low),
            "high_bytes": int(self.peak.high),
            "origin": self.peak.origin,
            "by_category": {name: self.by_category.get(name, 0) for name in CATEGORIES},
            "marp_bytes": self.marp_bytes,
            "per_rank": {"dp": self.parallel.dp, "tp": self.parallel.tp, "fsdp": self.parallel.fsdp},
            "trace_s": self.trace_s,
            "why": self.why,
            "upper_bounds": self.upper_bounds,
        }
