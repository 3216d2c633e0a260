"""`python -m benchmarks.impact`: see docs/evidence/impact.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.evidence.model import Benchmark
from benchmarks.impact.analysis import report
from benchmarks.impact.comparison import Comparison, Planned, compare, exit_code, log, planned, summary
from benchmarks.impact.recipe import MAIN, RECIPES, TUNED
from benchmarks.impact.record import load_all
from benchmarks.impact.run import WARM_UP_S

FOLDER = Path(__file__).resolve().parents[2] / "build" / "impact"
STRETCH = 3
PAIRS = 2
SEEDS = (1, 2, 3)
QUICK_JOBS = 8
QUICK_WARM_UP_S = 6.0
EVIDENCE = {
    "impact": Benchmark(
        ("benchmarks.impact", "--from", "benchmarks/results/impact"), 0.2, {"tables": report.markdown}, report.evidence
    )
}


def main() -> int:
    """Runs what is missing, computes, prints; returns the exit code."""
    options = _options()
    if options.markdown:
        print(report.markdown(json.loads(options.markdown.read_text())))
        return 0
    # As for Ctrl-C: the context managers end what was started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.runs is None:
        comparison = Comparison(
            folder=options.folder,
            pairs=1 if options.quick else options.pairs,
            seeds=options.seeds[:1] if options.quick else options.seeds,
            jobs=QUICK_JOBS if options.quick else options.jobs,
            brief=options.quick,
            training=options.training,
            stretch=1 if options.quick else options.stretch,
            parallel=options.parallel,
            warm_up_s=QUICK_WARM_UP_S if options.quick else WARM_UP_S,
        )
        asked = options.recipes or ([TUNED.name] if options.quick else [recipe.name for recipe in MAIN])
        recipes = [RECIPES[name] for name in asked]
        if options.dry_run:
            print(_timetable(planned(recipes, comparison), comparison))
            return 0
        compare(recipes, comparison)
        folder = comparison.folder
    else:
        folder = options.runs
    found = report.summary(load_all(folder), measure_scale=options.scale, log=log)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(report.markdown(found))
    return 0


def _timetable(runs: list[Planned], comparison: Comparison) -> str:
    """A line a run, with the minutes from and to which it would go on, and the sum."""
    lines = [f"{_clock(run.begin_s)} - {_clock(run.end_s)}  {run.path.stem}" for run in runs]
    return "\n".join([*lines, summary(runs, comparison)])


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(round(at_s), 60)
    return f"{minutes:3d}:{seconds:02d}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.impact", description="The cost of harvesting to a queue."
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument(
        "--pairs", type=whole, default=PAIRS, help=f"pairs of runs a seed, without bftd and with it [{PAIRS}]"
    )
    parser.add_argument(
        "--seeds", type=seeds_of, default=SEEDS, metavar="N,...", help=f"of the streams [{','.join(map(str, SEEDS))}]"
    )
    parser.add_argument("--jobs", type=int, default=60, help="regular jobs in the stream [60]")
    parser.add_argument(
        "--stretch", type=whole, default=STRETCH, help=f"show the stream so many times slower [{STRETCH}]"
    )
    parser.add_argument(
        "--parallel", type=whole, default=1, help="runs at a time; each takes a fifth of a core, more at its start [1]"
    )
    parser.add_argument("--dry-run", action="store_true", help="print which runs are missing and when they would go on")
    parser.add_argument("--quick", action="store_true", help="one pair of a very short stream: to see that it works")
    parser.add_argument(
        "--recipes",
        type=recipes_of,
        metavar="NAME,...",
        help=f"what to run, of: {', '.join(RECIPES)} [{','.join(recipe.name for recipe in MAIN)}; quick: {TUNED.name}]",
    )
    parser.add_argument("--table", dest="recipes", action="store_const", const=list(RECIPES), help="run all recipes")
    parser.add_argument(
        "--training", choices=("sleeping", "torchrun"), default="sleeping", help="what pilots do [sleeping]"
    )
    parser.add_argument("--scale", action="store_true", help="also measure a controller of 5,000 nodes and jobs")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where runs are kept; those there are not run again"
    )
    parser.add_argument(
        "--from", dest="runs", type=Path, metavar="FOLDER", help="compute from the runs there; run nothing"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of a file that --json wrote")
    return parser.parse_args()


def whole(text: str) -> int:
    """Read a number of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number from 1 is needed")
    return int(text)


def seeds_of(text: str) -> tuple[int, ...]:
    """Read seeds of the command line, each once."""
    return tuple(dict.fromkeys(whole(word) for word in text.split(",")))


def recipes_of(text: str) -> list[str]:
    """Read names of recipes of the command line."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in RECIPES:
            raise argparse.ArgumentTypeError(f"no recipe {name}: there are {', '.join(RECIPES)}")
    return names


if __name__ == "__main__":
    sys.exit(exit_code(main))
