"""The paper's figures and tables once more, from its own trace, side by side with what it prints.

    python -m benchmarks.paper [--json] [--data DIR] [--only PART ...] [--jobs N] [--quick]

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes" (arXiv:2106.12091).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import percent, section, table
from benchmarks.paper import extensions, hpo, networks
from benchmarks.paper.replays import SUBSET, TRACE, TRAINERS, Case, Results, missing, run_all, week
from bftd.base.errors import BftError, UsageError
from bftd.simulation.trace.stats import stats

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "summit"
QUICK_HOURS = 6.0


@dataclass(frozen=True)
class Part:
    """A figure or table: the replays it needs, and its section of the page."""

    cases: Callable[[], Sequence[Case]]
    section: Callable[[Results], str]


PARTS = {
    "table1": Part(lambda: (), hpo.table1),
    "figure7": Part(hpo.figure7_cases, hpo.figure7),
    "figure8": Part(hpo.figure8_cases, hpo.figure8),
    "figure9": Part(hpo.figure9_cases, hpo.figure9),
    "figure10": Part(hpo.figure10_cases, hpo.figure10),
    "figure11": Part(hpo.figure11_cases, hpo.figure11),
    "figure12": Part(networks.figure12_cases, networks.figure12),
    "figure13": Part(networks.figure13_cases, networks.figure13),
    "figure14": Part(
        lambda: [*networks.table3_cases(), *networks.table4_cases()],
        networks.figure14,
    ),
    "table3": Part(networks.table3_cases, networks.table3),
    "table4": Part(networks.table4_cases, networks.table4),
    "figure15": Part(extensions.figure15_cases, extensions.figure15),
    "figure16": Part(extensions.figure16_cases, extensions.figure16),
    "mends": Part(extensions.ablation_cases, extensions.ablation),
    "beyond": Part(extensions.beyond_cases, extensions.beyond),
    "scavenger": Part(extensions.scavenger_cases, extensions.scavenger),
    "timing": Part(extensions.timing_cases, extensions.timing),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays what the parts need, and prints their sections or JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.paper", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print every replay as JSON in place of sections")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where the Summit trace is")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; default: cores")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_HOURS:g} hours of the trace only")
    options = parser.parse_args(arguments)
    try:
        found = measured(options)
    except BftError as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found) if options.json else sections(found))
    return 0


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for; what the JSON holds. Raises `UsageError` where the data is not there."""
    if options.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more, not {options.jobs}")
    if lacking := missing(options.data):
        raise UsageError(
            f"{options.data} lacks {', '.join(lacking)}: make them from the replay data of the paper's authors "
            "(https://github.com/BFTrainer/Replayer) and name the folder with --data"
        )
    parts = [name for name in PARTS if options.only is None or name in options.only]
    cases = list(dict.fromkeys(each for name in parts for each in PARTS[name].cases()))
    hours = QUICK_HOURS if options.quick else None
    started_s = time.perf_counter()
    rows, outcomes = run_all(options.data, cases, jobs=options.jobs, hours=hours, log=_log)
    derived = {}
    subset = week(options.data, SUBSET, 1)
    if "figure10" in parts:
        milp, equal = (outcomes[each.key] for each in (hpo.MILP, hpo.EQUAL_SHARE))
        derived["per_event"] = hpo.per_event(milp, equal)
    for each, row in zip(cases, rows, strict=True):
        if each not in hpo.figure10_cases():  # no other figure shows the course of the week
            del row["result"]["series"], row["extras"]["costs"]
    found = {
        "parts": parts,
        "quick": options.quick,
        "jobs": options.jobs,
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()},
        "wall_s": time.perf_counter() - started_s,
        "inputs": {name: _sha256(options.data / name) for name in (TRACE, *TRAINERS.values())},
        "trace": {
            "whole": stats(week(options.data, "", 1)).to_json(),
            "subset": stats(subset).to_json(),
        },
        "derived": derived,
        "rows": rows,
    }
    return dict(rounded(found))


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- the sections ---


def sections(found: Mapping[str, Any]) -> str:
    """The figures and tables of a run, from what its JSON holds."""
    results = Results(found["rows"], found["derived"], found["trace"])
    quick = [f"Only the first {QUICK_HOURS:g} hours: a quick run, no figure of which means anything."] * found["quick"]
    return "\n\n".join([*quick, *(PARTS[name].section(results) for name in found["parts"]), _inputs(found)])


def _inputs(found: Mapping[str, Any]) -> str:
    rows = [[name, f"`{digest[:16]}`"] for name, digest in found["inputs"].items()]
    cpu_s = sum(row["extras"]["cpu_s"] for row in found["rows"])
    run = f"{len(found['rows'])} replays of these took {cpu_s / 60:.0f} minutes of CPU time."
    return section("Inputs", table(["file", "SHA-256 begins with"], rows), run)


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """U of the week; replays have no chance in them, so the interval is that of the digit shown."""
    results = Results(found["rows"], found["derived"], found["trace"])
    levels = {"U": results[hpo.MILP]["efficiency"], "U-exact": results[hpo.MILP_EXACT]["efficiency"]}
    return {name: Figure(percent(u), u, (u - 0.001, u + 0.001)) for name, u in levels.items()}


EVIDENCE = {"paper": Benchmark(("benchmarks.paper",), 10.0, {"sections": sections}, _figures)}


if __name__ == "__main__":
    sys.exit(main())
