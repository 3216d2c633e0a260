"""The benchmarks whose results can be kept, by name: each module's `EVIDENCE` has its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache

from benchmarks.evidence.model import Benchmark

MODULES = (
    "benchmarks.backfill.replay",
    "benchmarks.cells.accuracy",
    "benchmarks.cells.cost",
    "benchmarks.centre",
    "benchmarks.chaos.__main__",
    "benchmarks.checkpoints.large_states",
    "benchmarks.checkpoints.saves",
    "benchmarks.classes",
    "benchmarks.crius.alpa_search",
    "benchmarks.crius.decision",
    "benchmarks.crius.simulation",
    "benchmarks.curves.estimates",
    "benchmarks.curves.learning",
    "benchmarks.curves.waiting",
    "benchmarks.drivers.capacity",
    "benchmarks.earmark_times",
    "benchmarks.give_back",
    "benchmarks.history",
    "benchmarks.impact.__main__",
    "benchmarks.ledger",
    "benchmarks.milp",
    "benchmarks.paper.__main__",
    "benchmarks.pieces",
    "benchmarks.preempting",
    "benchmarks.rivals.__main__",
    "benchmarks.scale.cluster",
    "benchmarks.scale.command_line",
    "benchmarks.scale.hostile",
    "benchmarks.scale.live_screen",
    "benchmarks.scale.metrics",
    "benchmarks.scale.observers",
    "benchmarks.sizing.formula",
    "benchmarks.sizing.memory",
    "benchmarks.sizing.placement",
    "benchmarks.sizing.step_times",
    "benchmarks.synergy.generated_packing",
    "benchmarks.synergy.loaders",
    "benchmarks.synergy.packing",
    "benchmarks.synergy.search",
    "benchmarks.synergy.simulation",
    "benchmarks.twin.__main__",
    "benchmarks.twin.features",
    "benchmarks.twin.recorded",
    "benchmarks.twin.speed",
    "benchmarks.twin.windows",
    "benchmarks.web.page",
    "tools.mutants",
    "tools.year",
)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark whose result can be kept; raises ValueError if two have one name."""
    found: dict[str, Benchmark] = {}
    for module in MODULES:
        for name, benchmark in importlib.import_module(module).EVIDENCE.items():
            if name in found:
                raise ValueError(f"{module} has another {name}")
            found[name] = benchmark
    return found
