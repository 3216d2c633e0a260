"""Synergy's packers in rounds on simulated servers: mean job completion time (JCT) against GPU-proportional shares.

    python -m benchmarks.synergy.simulation [--seeds 10] [--jobs N] [--processes 2]
                                             [--only loads,mixes,...] [--json]

Jobs are drawn from the public matrices (shared/data/sizing/synergy-matrices.json): a class by the mix
(image/language/speech), any model of it, Poisson arrivals, lognormal durations as with a proportional share (median
2.2 h, mean 3.5 h). Servers have 8 GPUs, 24 CPUs and 500 GB. Load is the share of all GPUs that the jobs ask for with
proportional shares up to the last submission. Rounds of 300 s, a restart costs 30 s, other CPUs or memory on the same
server nothing.

1. loads: 16 servers, one-GPU jobs, 20/70/10, each order at loads from 0.7 to 1.1.
2. mixes: 30/60/10, 50/0/50 (no job can do with less than its share) and 50/50/0 (much is left), in order of arrival.
3. sizes: jobs of 1, 2 and 4 GPUs.
4. durations: those of public traces instead of a lognormal.
5. packers: also GREEDY and TUNE, and OPT with the first order, on 4 servers, as OPT takes a tenth of a second a round
   there.
6. profiled: `priced` knows the CPU axis as few tried points tell it (sizing.cpu.sensitivity.search) in place of the
   true matrix, exact ones, and ones that are measured within 5 %.
7. overload: 4 servers at a load that `priced` can keep up with and proportional shares cannot, for longer and longer.

The servers begin as full as the load keeps them. Figures are of the jobs in the middle of those that come after that: a
quarter is cut at each end. Every policy sees the same jobs for a seed, and ratios are paired by seed (geometric mean,
95 % interval). At a load of 1 and above proportional shares have no steady state: the queue grows for as long as the
load lasts, and with it the ratio; `overload` shows how.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.evidence.model import Benchmark, Figure, rounded
from sizing.cpu.matrices_file import load
from sizing.cpu.sensitivity import search
from sizing.cpu.sensitivity.matrix import Matrices, Matrix
from studies.simulation import report
from studies.simulation.world import SimulatedJob
from studies.synergy import comparison
from studies.synergy.comparison import Figures
from studies.synergy.generated_jobs import ONE_GPU, drawn
from studies.synergy.job_orders import ORDERS
from studies.synergy.packing.draw import mix_of
from studies.synergy.packing.parse_servers import papers

DATA = Path(__file__).parents[3] / "shared" / "data" / "sizing"
MATRICES = DATA / "synergy-matrices.json"
FIRST_SEED = 100
SEVERAL: Mapping[int, float] = {1: 0.7, 2: 0.15, 4: 0.15}
BASE = "proportional"
ERRORS: Mapping[str, float] = {"priced told by profiles": 0.0, "priced told by profiles within 5 %": 0.05}
"""The errors of the points that `priced` is told."""


class Scene(NamedTuple):
    """So many jobs of a mix at a load on servers, and which packers are compared on them under which orders."""

    load: float
    mix: str = "20/70/10"
    servers: int = 16
    jobs: int = 1200
    sizes: Mapping[int, float] = ONE_GPU
    trace: str = ""
    runs: Sequence[tuple[str, str]] = (("fifo", BASE), ("fifo", "priced"))


def _each(orders: Sequence[str], *packers: str) -> tuple[tuple[str, str], ...]:
    return tuple((order, packer) for order in orders for packer in (BASE, *packers))


SCENES: Mapping[str, Scene] = {
    **{f"loads-{load:g}": Scene(load, runs=_each(tuple(ORDERS), "priced")) for load in (0.7, 0.9, 1.0, 1.1)},
    **{
        f"mixes-{mix}-{load:g}": Scene(load, mix)
        for mix in ("30/60/10", "50/0/50", "50/50/0")
        for load in (0.9, 1.0, 1.1)
    },
    **{f"sizes-{load:g}": Scene(load, sizes=SEVERAL) for load in (0.9, 1.1)},
    **{f"durations-{trace}": Scene(1.0, trace=trace) for trace in ("cluster01", "cluster02")},
    "packers": Scene(
        1.0, servers=4, jobs=200, runs=(*_each(tuple(ORDERS), "greedy", "tune", "priced"), ("fifo", "opt"))
    ),
    "profiled": Scene(1.1, runs=_each(("fifo",), "priced", *ERRORS)),
    **{f"overload-{jobs}": Scene(1.1, "30/60/10", servers=4, jobs=jobs) for jobs in (400, 1600, 4800)},
}


class Task(NamedTuple):
    """One run."""

    scene: str
    order: str
    packer: str
    seed: int
    jobs: int


@lru_cache(maxsize=1)
def matrices() -> Matrices:
    """The public ones."""
    return load(MATRICES)


def profiled(matrix: Matrix, error: float = 0.0, seed: int = 0) -> Matrix:
    """A matrix as a profile tells it: CPUs that were not tried are on a line between those that were.

    Points that were are off by up to `error`. The memory axis is the true one: the public matrices do not tell what it
    would be worked out of.
    """
    off = np.random.default_rng([seed, 67]).uniform(1 - error, 1 + error, len(matrix.cpus))
    points = zip(matrix.cpus, matrix.rates, off, strict=True)
    whole = {cpus: row[-1] * float(times) for cpus, row, times in points}
    found = search.search(matrix.cpus, whole.__getitem__)
    rates = search.curve(found)
    rows = tuple(
        tuple(rate / row[-1] * rates[cpus] if row[-1] else 0.0 for rate in row)
        for cpus, row in zip(matrix.cpus, matrix.rates, strict=True)
    )
    return replace(matrix, rates=rows, searched=found.demand)


@lru_cache(maxsize=4)
def _durations_s(trace: str) -> tuple[float, ...]:
    with gzip.open(DATA / f"jobs-{trace}.csv.gz", "rt", encoding="utf-8") as file:
        return tuple(float(row["duration"]) for row in csv.DictReader(file))


@lru_cache(maxsize=4)
def jobs_of(scene: str, seed: int, count: int) -> tuple[SimulatedJob, ...]:
    """The jobs of a scene for a seed."""
    asked = SCENES[scene]
    return drawn(
        matrices(),
        mix_of(asked.mix),
        papers(asked.servers),
        seed=seed,
        count=count,
        load=asked.load,
        sizes=asked.sizes,
        durations_s=_durations_s(asked.trace) if asked.trace else (),
    )


def run(task: Task) -> tuple[Task, Figures, float]:
    """One run, and how long it took."""
    jobs = jobs_of(task.scene, task.seed, task.jobs)
    servers = papers(SCENES[task.scene].servers)
    told = None
    if (error := ERRORS.get(task.packer)) is not None:
        every = enumerate(matrices().items())
        told = {name: profiled(each.matrix, error, 1000 * task.seed + at) for at, (name, each) in every}
    began = time.perf_counter()
    found = comparison.run(task.order, task.packer.split()[0], jobs, servers, matrices(), told=told)
    return task, found, time.perf_counter() - began


Runs = Mapping[tuple[str, str], Sequence[Figures]]
"""By order and packer, in the order of seeds."""


def measured(scenes: Sequence[str], seeds: int, jobs: int | None, processes: int) -> dict[str, Runs]:
    """All runs by scene."""

    def count(scene: str) -> int:
        return SCENES[scene].jobs if jobs is None else min(jobs, SCENES[scene].jobs)

    tasks = [
        Task(scene, order, packer, seed, count(scene))
        for scene in scenes
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for order, packer in SCENES[scene].runs
    ]
    found: dict[Task, Figures] = {}
    with ProcessPoolExecutor(processes) as pool:
        for task, figures, took_s in pool.map(run, tasks):
            found[task] = figures
            what = f"{task.scene} {task.order} {task.packer} {task.seed}"
            print(f"{len(found)} of {len(tasks)}: {what} {took_s:.1f} s", file=sys.stderr)
    return {
        scene: {
            (order, packer): [
                found[Task(scene, order, packer, seed, count(scene))] for seed in range(FIRST_SEED, FIRST_SEED + seeds)
            ]
            for order, packer in SCENES[scene].runs
        }
        for scene in scenes
    }


def speedup(runs: Runs, order: str, packer: str) -> report.Interval | None:
    """The mean JCT with proportional shares over that of a packer, under the same order."""
    return report.paired(*([each.mean_jct_s for each in runs[order, name]] for name in (BASE, packer)))


_HEADINGS = (
    *("scene", "mix", "load", "jobs", "order", "packer", "mean JCT, h", "99 %, h", "proportional: mean, h", "99 %, h"),
    *("throughput a GPU", "restarts a job", "slowest job", "speedup of mean JCT"),
)


def tables(told: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a table from `to_json`: a row for each run beside that with GPUs' shares."""
    yield f"| {' | '.join(_HEADINGS)} |"
    yield "| --- | --- | ---: | ---: | --- | --- |" + " ---: |" * 7 + " --- |"
    seen = ""
    for scene in filter(told.__contains__, SCENES):
        asked, group = told[scene], scene.partition("-")[0]
        for order, packer in SCENES[scene].runs:
            if packer != BASE:
                each, base = (asked["runs"][f"{order} {name}"] for name in (packer, BASE))
                yield _row(group if group != seen else "", asked, (order, packer), each, base)
                seen = group


def _row(
    group: str, asked: Mapping[str, Any], run: tuple[str, str], each: Mapping[str, Any], base: Mapping[str, Any]
) -> str:
    mix = asked["mix"] + (f", {asked['trace']}" if asked["trace"] else "")
    mix += f", {'/'.join(map(str, asked['sizes']))} GPUs" if len(asked["sizes"]) > 1 else ""
    ratio = each["speedup"]
    against = "-"
    if ratio is not None:
        within = f" ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio["low"] != ratio["high"] else ""
        against = f"{ratio['mean']:.2f}x{within}"
    cells = [
        *(group, mix, f"{asked['load']:g}", f"{asked['jobs']}", run[0].upper(), run[1]),
        *(_hours(each["mean_jct_s"]), _hours(each["p99_jct_s"], 1), _hours(base["mean_jct_s"])),
        *(_hours(base["p99_jct_s"], 1), f"{each['throughput']['mean']:.2f}", f"{each['restarts']['mean']:.2f}"),
        *(f"{each['slowest']['mean']:.2f}", against),
    ]
    return f"| {' | '.join(cells)} |"


def _hours(found: Mapping[str, float], digits: int = 2) -> str:
    return f"{found['mean'] / 3600:.{digits}f}"


def to_json(found: Mapping[str, Runs]) -> dict[str, Any]:
    """All scenes: each run's figures as intervals over the seeds, and speedups of mean JCT."""
    told: dict[str, Any] = {}
    for scene, runs in found.items():
        each: dict[str, Any] = {}
        for (order, packer), figures in runs.items():
            ratio = speedup(runs, order, packer)
            each[f"{order} {packer}"] = {
                **{
                    name: report.interval([getattr(one, name) for one in figures]).to_json()
                    for name in comparison.NAMES
                },
                "speedup": ratio and ratio.to_json(),
                "mean_jct_s_by_seed": [each.mean_jct_s for each in figures],
            }
        told[scene] = {**SCENES[scene]._asdict(), "runs": each}
    return told


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The speedup of `priced` where jobs come in order, in the scenes of loads and overload."""
    figures = {}
    for scene, asked in found["scenes"].items():
        if (ratio := asked["runs"].get("fifo priced", {}).get("speedup")) is not None:
            figures[scene] = Figure(f"{ratio['mean']:.2f}x", ratio["mean"], (ratio["low"], ratio["high"]))
    return figures


EVIDENCE = {
    "synergy_simulation": Benchmark(
        ("benchmarks.synergy.simulation",),
        60.0,
        {"table": lambda result: "\n".join(tables(result["scenes"]))},
        _figures,
    )
}


def main() -> None:
    """Runs what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, choices=range(1, 101), default=10, metavar="N", help="1 to 100")
    parser.add_argument("--jobs", type=int, help="of a run, at most")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="scenes, or what their names begin with")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = [name for name in asked.only.split(",") if name]
    if asked.jobs is not None and asked.jobs < 8:
        parser.error("--jobs must be 8 or more: fewer tell nothing of those in the middle")
    scenes = [scene for scene in SCENES if not wanted or any(scene.startswith(name) for name in wanted)]
    if not scenes:
        sys.exit(f"synergy.simulation: --only {asked.only}: no such scene; one of {', '.join(SCENES)}")
    if not MATRICES.exists():
        sys.exit("synergy.simulation: the public matrices are not there (shared/data/sizing/synergy-matrices.json)")
    began = time.perf_counter()
    told = rounded(to_json(measured(scenes, asked.seeds, asked.jobs, max(asked.processes, 1))))
    if asked.json:
        print(json.dumps({"seeds": asked.seeds, "jobs": asked.jobs, "scenes": told}, indent=2))
        return
    print("\n".join(tables(told)))
    took_s = time.perf_counter() - began
    print(f"{asked.seeds} seed{'s' * (asked.seeds > 1)} from {FIRST_SEED}; {took_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
