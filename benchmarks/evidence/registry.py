"""The benchmarks whose results are kept, by name: each module's `EVIDENCE` has its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache

from benchmarks.evidence.model import Benchmark

MODULES = (
    "benchmarks.crius.alpa_search",
    "benchmarks.crius.decision",
    "benchmarks.sizing.formula",
    "benchmarks.sizing.memory",
    "benchmarks.sizing.placement",
    "benchmarks.sizing.step_times",
    "benchmarks.give_back",
    "benchmarks.impact.__main__",
    "benchmarks.pieces",
    "benchmarks.preempting",
    "benchmarks.scale.command_line",
    "benchmarks.scale.live_screen",
    "benchmarks.scale.metrics",
    "benchmarks.twin.__main__",
    "benchmarks.twin.features",
    "benchmarks.twin.recorded",
    "benchmarks.web.page",
)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark whose result is kept; raises ValueError if two have one name."""
    found: dict[str, Benchmark] = {}
    for module in MODULES:
        for name, benchmark in importlib.import_module(module).EVIDENCE.items():
            if name in found:
                raise ValueError(f"{module} has another {name}")
            found[name] = benchmark
    return found
