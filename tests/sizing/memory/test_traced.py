"""A trace as the peak that is shown."""

from __future__ import annotations

from sizing.base.parallel import Parallel
from sizing.memory import traced
from sizing.model.trace import StepTrace


def test_a_traced_peak_has_only_the_guard_band_above_it() -> None:
    kinds = {"parameters": 2**30, "activations": 2**31}
    trace = StepTrace(4, Parallel(dp=2), "cuda", 3 * 2**30, kinds, 2**28, (), {}, "2.13.0", 3.5)  # type: ignore[arg-type]
    peak = traced.peak_of(trace)
    assert (peak.peak.low, peak.peak.value, peak.peak.origin) == (3 * 2**30, 3 * 2**30, "traced")
    assert peak.peak.high == 3 * 2**30 + 3 * 2**29
    assert peak.to_json()["by_category"]["temporary"] == 0
    assert (peak.batch, peak.trace_s, peak.marp_bytes, peak.to_json()["per_rank"]["dp"]) == (4, 3.5, None, 2)
