"""The cost of harvesting to the queue, over many streams of jobs on a simulated slurmctld.

    python -m benchmarks.twin [--json] [--streams N] [--courses N] [--stretch N] [--plain] [--jobs N]

Each stream is that of the impact benchmark with another seed. It runs `--courses` times each without bftd, so but on
nodes at random, so but with an allocation on every node at the beginning, and with bftd. The unit of every interval is
the stream.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from os import cpu_count
from random import Random
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.twin.streams import BEGIN_S, Shape, stream_on
from bftd.config.keys import PoolConfig
from bftd.simulation.slurm.courses import Control, Course, Difference, course
from bftd.simulation.slurm.harvester import HarvestSettings

STREAMS, COURSES = 300, 2
# The live benchmark's allocations have a limit of a minute, for which slurmctld looks every half a minute.
HELD_S = 75.0


@dataclass(frozen=True, slots=True)
class Condition:
    """A way to run a stream that is compared with Slurm alone."""

    name: str
    harvest: HarvestSettings | None = None
    control: Control = "slurm"
    youngest_first: bool = False


CONDITIONS = (
    Condition("without bftd, again"),
    Condition("nodes at random, without bftd", control="random"),
    Condition("every node held at the beginning, without bftd", HarvestSettings(only_s=HELD_S)),
    Condition("bftd", HarvestSettings()),
    Condition("bftd, half of the nodes wanted", HarvestSettings(wanted=0.5)),
    Condition("bftd, preempt_youngest_first", HarvestSettings(), youngest_first=True),
    Condition("bftd without earmarks", HarvestSettings(PoolConfig(earmark=False))),
)
WITHOUT = Condition("without bftd")


def courses_of(seed: int, condition: Condition, shape: Shape, courses: int, first: int = 0) -> list[Course]:
    """Run a stream some times, with the chances from the `first` on.

    A course has the same phase of the minute, and of backfill, under every condition.
    """
    found = []
    for number in range(courses):
        phase = Random(1000 * seed + number)
        plain = replace(shape.site(), youngest_first=condition.youngest_first)
        site, jobs = stream_on(plain, shape, seed, BEGIN_S + phase.randrange(60))
        phase_s = phase.uniform(0.0, site.scheduler.interval_s)
        chances = 1000 * seed + first + number
        found.append(course(site, jobs, chances, condition.harvest, condition.control, phase_s))
    return found


def _all_of(seed: int, shape: Shape, courses: int) -> list[list[Course]]:
    conditions = (WITHOUT, *CONDITIONS)
    return [courses_of(seed, one, shape, courses, courses * place) for place, one in enumerate(conditions)]


def compared(found: Sequence[Sequence[Sequence[Course]]], conditions: Sequence[Condition]) -> list[dict[str, object]]:
    """Compare each condition with Slurm alone; `found` has the courses by stream, then by condition."""
    rows = []
    without = [one[0] for one in found]
    for place, condition in enumerate(conditions, 1):
        courses = [one[place] for one in found]
        wait = Difference.between(_values(courses, "mean_wait_s"), _values(without, "mean_wait_s"))
        makespan = Difference.between(_values(courses, "makespan_s"), _values(without, "makespan_s"))
        alike = [
            a.alike(b) for one, other in zip(courses, without, strict=True) for a, b in zip(one, other, strict=False)
        ]
        every = [each for one in courses for each in one]
        rows.append(
            {
                "name": condition.name,
                "wait": asdict(wait) | {"percent": wait.percent, "percent_half_width": wait.percent_half_width},
                "makespan": asdict(makespan) | {"percent": makespan.percent},
                "differences_s": [round(a - b, 2) for a, b in zip(_means(courses), _means(without), strict=True)],
                "same_start_share": statistics.mean(alike),
                **{
                    name: statistics.mean(getattr(each, name) for each in every)
                    for name in ("harvested_node_s", "preemptions", "late", "earmarks", "useful_earmarks")
                },
            }
        )
    return rows


def _means(courses: Iterable[Sequence[Course]]) -> list[float]:
    return [statistics.mean(each) for each in _values(courses, "mean_wait_s")]


def _values(courses: Iterable[Sequence[Course]], name: str) -> list[list[float]]:
    return [[getattr(each, name) for each in one] for one in courses]


def table(rows: Sequence[dict[str, object]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| | mean wait | makespan | same start | harvested | preemptions | late |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        wait, makespan = row["wait"], row["makespan"]
        assert isinstance(wait, dict)
        assert isinstance(makespan, dict)
        lines.append(
            f"| {row['name']} | {wait['mean']:+.2f} ± {wait['half_width']:.2f} s of {wait['of']:.0f} s "
            f"({wait['percent']:+.2f} ± {wait['percent_half_width']:.2f} %) | {makespan['percent']:+.2f} % "
            f"| {row['same_start_share']:.0%} | {row['harvested_node_s']:.0f} node-s | {row['preemptions']:.1f} "
            f"| {row['late']:.2f} |"
        )
    return "\n".join(lines)


def show(as_json: bool, shape: dict[str, object], rows: list[dict[str, object]], ran: str) -> None:
    """Print the rows, as JSON beside the shape of what was run, or as a table with `ran` on standard error."""
    if as_json:
        print(json.dumps({**shape, "conditions": rows}, indent=2))
    else:
        print(table(rows))
        print(f"\n{ran}", file=sys.stderr)


def evidence(result: Any) -> Mapping[str, Figure]:
    """The wait and the share of same starts of each condition, by its name."""
    found = {}
    for row in result["conditions"]:
        wait, name = row["wait"], row["name"].replace(", ", "-").replace(" ", "-")
        mean, half = wait["percent"], wait["percent_half_width"]
        found[f"{name}.wait"] = Figure(f"{mean:+.1f} ± {half:.1f} %", mean, (mean - half, mean + half))
        found[f"{name}.alike"] = Figure(f"{100 * row['same_start_share']:.0f} %", row["same_start_share"])
    return found


_WORDS = ("benchmarks.twin", "--streams", "3000", "--courses", "1")
TABLES = {"waits": lambda result: table(result["conditions"])}
EVIDENCE = {
    "twin": Benchmark(_WORDS, 4.0, TABLES, evidence),
    "twin_plain": Benchmark((*_WORDS, "--plain"), 4.0, TABLES, evidence),
}


def main() -> int:
    """Run, compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"[{STREAMS}]")
    parser.add_argument("--courses", type=int, default=COURSES, help=f"of each stream and condition [{COURSES}]")
    parser.add_argument("--stretch", type=int, default=3, help="streams so many times slower [3]")
    parser.add_argument("--plain", action="store_true", help="streams whose jobs take any nodes")
    parser.add_argument("--nodes", type=int, default=16, help="[16]")
    parser.add_argument("--jobs", type=int, default=60, help="of each stream [60]")
    parser.add_argument("--processes", type=int, default=cpu_count() or 1, help="at a time [one for each CPU]")
    options = parser.parse_args()
    began_s = time.monotonic()
    shape = Shape(options.nodes, options.jobs, options.stretch, not options.plain)
    with ProcessPoolExecutor(options.processes) as pool:
        run = partial(_all_of, shape=shape, courses=options.courses)
        found = list(pool.map(run, range(1, options.streams + 1), chunksize=4))
    show(
        options.json,
        {"streams": options.streams, "courses": options.courses, **asdict(shape)},
        compared(found, CONDITIONS),
        f"{options.streams} streams of {options.jobs} jobs, {options.courses} courses each, "
        f"{time.monotonic() - began_s:.0f} s",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
