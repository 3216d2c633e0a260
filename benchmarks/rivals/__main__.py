"""`python -m benchmarks.rivals`: what each way to train on idle nodes wins and costs; see docs/evidence/impact.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.impact.__main__ import QUICK_JOBS, QUICK_WARM_UP_S, recipes_of, seeds_of, whole
from benchmarks.impact.comparison import exit_code, side_by_side, slurm_release
from benchmarks.impact.recipe import DEFAULT, RECIPES, TUNED
from benchmarks.impact.run import WARM_UP_S
from benchmarks.rivals import page
from benchmarks.rivals.comparison import of_seed, over_seeds
from benchmarks.rivals.runs import Streams, read, run
from benchmarks.rivals.systems import SYSTEMS
from benchmarks.rivals.training import Costs

EVIDENCE = {
    "rivals": Benchmark(
        ("benchmarks.rivals",),
        42.0,
        {"table": page.table},
    )
}
FOLDER = Path(__file__).resolve().parents[2] / "build" / "rivals"


def main() -> int:
    """Runs what is missing, the systems of a seed one after the other or side by side, and prints; returns the code."""
    options = _options()
    # As for Ctrl-C: the context managers end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    release, costs = slurm_release(), Costs()
    warm_up_s = QUICK_WARM_UP_S if options.quick else WARM_UP_S
    streams = Streams(options.folder, release, options.jobs, options.stretch, options.quick, warm_up_s)
    missing = []
    for what in product(options.seeds, options.recipes, SYSTEMS):
        path = streams.path(*what)
        if not path.exists():
            missing.append((path.stem, run, (*what, streams, costs)))
    side_by_side(missing, options.parallel)
    found: dict[str, Any] = {
        "slurm": release, "jobs": options.jobs, "stretch": options.stretch, "costs": costs.told(), "recipes": {}
    }  # fmt: skip
    for recipe in options.recipes:
        seeds = [
            of_seed({system.name: read(streams.path(seed, recipe, system)) for system in SYSTEMS}, costs)
            for seed in options.seeds
        ]
        found["recipes"][recipe] = {"systems": over_seeds(seeds), "runs": seeds}
    print(json.dumps(found, indent=1) if options.json else page.table(found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--seeds", type=seeds_of, default=(1, 2, 3), metavar="N,...", help="of the streams [1,2,3]")
    parser.add_argument("--jobs", type=whole, default=40, help="regular jobs in the stream [40]")
    parser.add_argument("--stretch", type=whole, default=2, help="show the stream so many times slower [2]")
    parser.add_argument(
        "--recipes", type=recipes_of, default=[DEFAULT.name, TUNED.name], metavar="NAME,...",
        help=f"Slurm's settings, of: {', '.join(RECIPES)} [{DEFAULT.name},{TUNED.name}]",
    )  # fmt: skip
    parser.add_argument(
        "--parallel", type=whole, default=len(SYSTEMS),
        help=f"runs at a time: those of a seed side by side have the machine to the same degree [{len(SYSTEMS)}]",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a very short stream: to see that it works")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where runs are kept; those there are not run again"
    )
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.jobs, options.stretch = options.seeds[:1], QUICK_JOBS, 1
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
