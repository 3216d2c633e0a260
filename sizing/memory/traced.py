"""The peak of memory from a trace."""

from __future__ import annotations

from sizing.base.estimate import Estimate
from sizing.memory.peak import MemoryPeak, guarded_bytes
from sizing.model.trace import StepTrace


def peak_of(trace: StepTrace) -> MemoryPeak:
    """Return the traced peak, with the guard band above it."""
    peak = trace.peak_bytes
    return MemoryPeak(
        peak=Estimate(peak, peak, guarded_bytes(peak), "traced"),
        by_category=trace.by_category,
        parallel=trace.parallel,
        batch=trace.batch,
        trace_s=trace.trace_s,
        upper_bounds=trace.upper_bounds,
    )
