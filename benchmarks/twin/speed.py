"""The speed of the simulated slurmctld on one core: many short streams on 16 nodes, and a year of a large machine.

    python -m benchmarks.twin.speed [--json] [--streams N] [--jobs N] [--nodes N] [--load SHARE]

Streams are those of the impact benchmark. The year is made up, always the same, of sizes, limits and bursts of
submissions as in the log of a machine for simulations (most jobs have 128 nodes and limits of hours). Times are
processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from benchmarks.evidence.model import Benchmark, rounded
from benchmarks.markdown import table
from benchmarks.twin.streams import BEGIN_S, Shape, stream_on
from bftd.pool.backfill.model import Component
from bftd.simulation.slurm.courses import course
from bftd.simulation.slurm.harvester import HarvestSettings
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite

STREAMS, JOBS, NODES, LOAD = 50, 24_000, 3_400, 0.9
LEAST_JOBS_PER_S, LEAST_WITH_PILOTS, MOST_YEAR_S = 5_000, 500, 600
"""Bounds: jobs a second, the same with pilots, and the processor time of a year in seconds."""
_HOUR_S, _DAY_S = 3600.0, 86_400.0
# The size of jobs as a share of 4,096 nodes, how many have it, and the limits among which they choose, in hours.
_SIZES = (
    (1 / 32, 58, (0.5, 0.75, 1.0, 3.0, 3.0, 3.0, 6.0)),
    (1 / 16, 23, (0.5, 1.0, 3.0, 6.0, 6.0, 9.0)),
    (1 / 8, 11, (1.0, 2.0, 3.0, 9.0, 12.0)),
    (1 / 4, 5, (0.5, 1.0, 6.0, 12.0, 24.0)),
    (1 / 2, 3, (2.0, 9.0, 24.0)),
)
# The share of its limit that a job uses: from, to.
_USED = ((0.0, 0.1), (0.0, 1.0), (0.0, 1.0), (0.9, 1.0), (0.9, 1.0))
_BURST = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """The jobs that a second of processor time simulates, and figures of the year with pilots."""

    jobs_per_s: float
    jobs_per_s_with_pilots: float
    year_jobs: int
    year_nodes: int
    year_days: float
    year_cpu_s: float
    year_mean_wait_h: float
    year_harvested_node_h: float


def made_up(nodes: int, count: int, load: float, seed: int = 1) -> list[SimulatedJob]:
    """Return jobs that come in bursts, over as much time as makes them `load` the nodes."""
    random = Random(seed)
    shapes = []
    for _ in range(count):
        share, _, limits_h = random.choices(_SIZES, [weight for _, weight, _ in _SIZES])[0]
        limit_s = _HOUR_S * random.choice(limits_h)
        used = random.uniform(*random.choice(_USED))
        shapes.append((max(1, min(nodes, round(4096 * share * nodes / NODES))), limit_s, max(10.0, used * limit_s)))
    lasts_s = sum(size * run_s for size, _, run_s in shapes) / (nodes * load)
    submits_s: list[float] = []
    while len(submits_s) < count:
        at_s = lasts_s * random.random()
        submits_s += [at_s + 30.0 * place for place in range(round(random.expovariate(1.0 / _BURST)) + 1)]
    everything = (1 << nodes) - 1
    return [
        SimulatedJob(number, BEGIN_S + submit_s, run_s, limit_s, Component(everything, size, within=everything))
        for number, (submit_s, (size, limit_s, run_s)) in enumerate(zip(sorted(submits_s[:count]), shapes, strict=True))
    ]


def streams_per_s(streams: int, harvest: HarvestSettings | None) -> float:
    """Return how many jobs of short streams on 16 nodes are simulated a second."""
    shape = Shape()
    drawn = [stream_on(shape.site(), shape, seed) for seed in range(1, streams + 1)]
    began_s = time.process_time()
    for seed, (site, jobs) in enumerate(drawn):
        course(site, jobs, seed, harvest)
    return streams * shape.jobs / (time.process_time() - began_s)


def measured(streams: int, count: int, nodes: int, load: float) -> Speed:
    """Measure all."""
    jobs = made_up(nodes, count, load)
    plain, harvested = streams_per_s(4 * streams, None), streams_per_s(streams, HarvestSettings())
    began_s = time.process_time()
    year = course(SimulatedSite.of(nodes), jobs, 1, HarvestSettings())
    return Speed(
        plain,
        harvested,
        count,
        nodes,
        (jobs[-1].submit_s - jobs[0].submit_s) / _DAY_S,
        time.process_time() - began_s,
        statistics.mean(year.waits_s) / _HOUR_S,
        year.harvested_node_s / _HOUR_S,
    )


def speeds(found: Mapping[str, Any]) -> str:
    """Return the measured values beside the aims."""
    plain, harvested, year_s = (found[name] for name in ("jobs_per_s", "jobs_per_s_with_pilots", "year_cpu_s"))
    year = f"{found['year_jobs']:,} jobs in {found['year_days']:.0f} days on {found['year_nodes']:,} nodes, with pilots"
    rows = [
        ["streams on 16 nodes", f"{plain:,.0f} jobs/s", f"{LEAST_JOBS_PER_S:,} jobs/s", plain < LEAST_JOBS_PER_S],
        [
            "the same with pilots",
            f"{harvested:,.0f} jobs/s",
            f"{LEAST_WITH_PILOTS} jobs/s",
            harvested < LEAST_WITH_PILOTS,
        ],
        [year, f"{year_s:.0f} s", f"{MOST_YEAR_S} s", year_s > MOST_YEAR_S],
    ]
    return table(
        ["what", "processor time", "bound"],
        [[name, value + (", missed" if missed else ""), bound] for name, value, bound, missed in rows],
    )


EVIDENCE = {"twin_speed": Benchmark(("benchmarks.twin.speed",), 5.0, {"speeds": speeds})}


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.speed", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"of 60 jobs on 16 nodes [{STREAMS}]")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"of the year [{JOBS}]")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"of the year's machine [{NODES}]")
    parser.add_argument("--load", type=float, default=LOAD, help=f"of that machine [{LOAD}]")
    options = parser.parse_args()
    found = rounded(asdict(measured(options.streams, options.jobs, options.nodes, options.load)))
    print(json.dumps(found, indent=2) if options.json else speeds(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
