"""The cost of harvesting to the jobs of a real log, window by window, on a simulated slurmctld.

    python -m benchmarks.twin.windows [LOG] [--json] [--nodes N] [--windows N] [--size N] [--courses N]

LOG is in the Standard Workload Format, or a file of jobs by `bft trace from-sacct`; without it, the first half of 2022
on Theta. Each window is some jobs of the
log that come one after another to an empty machine with Slurm's default settings. Courses differ in the phase of
backfill: without bftd, they show how much the waits of a window vary of themselves. The unit of every interval is the
window.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path
from random import Random

from benchmarks.evidence.model import Benchmark
from benchmarks.twin.__main__ import TABLES, WITHOUT, Condition, compared, evidence, show
from bftd.pool.backfill.model import Component
from bftd.simulation.slurm.courses import Course, course
from bftd.simulation.slurm.harvester import HarvestSettings
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from bftd.simulation.trace import job_log
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.job_model import LoggedJob

CONDITIONS = (
    Condition("without bftd, again"),
    Condition("nodes at random, without bftd", control="random"),
    Condition("bftd", HarvestSettings()),
)
THETA = Path(__file__).resolve().parents[3] / "shared" / "data" / "logs" / "theta-2022-first-half.swf.gz"
_SHORTEST_LIMIT_S = 60.0
_UNLIMITED_S = 86_400.0


def windows(logged: Sequence[LoggedJob], nodes: int, size: int, most: int) -> list[list[SimulatedJob]]:
    """Cut the jobs that ran into windows of `size` jobs on `nodes` nodes, at most so many, spread over the log."""
    ran = [job for job in logged if job.start_s is not None and job.end_s is not None]
    first = range(0, len(ran) - size + 1, size)
    chosen = first[:: -(-len(first) // most)] if len(first) > most else first
    return [[_job(number, job, nodes) for number, job in enumerate(ran[at : at + size])] for at in chosen]


def _job(number: int, job: LoggedJob, nodes: int) -> SimulatedJob:
    everything = (1 << nodes) - 1
    limit_s = max(_SHORTEST_LIMIT_S, job.limit_s or _UNLIMITED_S)
    run_s = min((job.end_s or 0.0) - (job.start_s or 0.0), limit_s)
    part = Component(everything, min(nodes, job.nodes), within=everything)
    return SimulatedJob(number, job.submit_s, run_s, limit_s, part, user=job.user)


def courses_of(window: tuple[int, Sequence[SimulatedJob]], nodes: int, courses: int) -> list[list[Course]]:
    """Run a window some times under each condition, each time with another phase of backfill."""
    number, jobs = window
    site = SimulatedSite.of(nodes)
    found = []
    for place, one in enumerate((WITHOUT, *CONDITIONS)):
        seeds = [1_000_000 * place + 1000 * number + again for again in range(courses)]
        found.append([course(site, jobs, seed, one.harvest, one.control, _phase_s(site, seed)) for seed in seeds])
    return found


def _phase_s(site: SimulatedSite, seed: int) -> float:
    return Random(seed).uniform(0.0, site.scheduler.interval_s)


_WORDS = ("benchmarks.twin.windows", "--nodes", "3400", "--size", "125", "--windows", "50", "--courses", "1")
EVIDENCE = {"twin_windows": Benchmark(_WORDS, 6.0, TABLES, evidence)}


def main() -> int:
    """Run, compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.windows", description=__doc__.split("\n")[0])
    parser.add_argument("log", nargs="?", default=THETA, metavar="LOG", help=f"[{THETA.name}]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--windows", type=int, default=100, help="at most, spread over the log [100]")
    parser.add_argument("--nodes", type=int, help="of the machine [as the log says]")
    parser.add_argument("--size", type=int, default=300, help="jobs of a window [300]")
    parser.add_argument("--courses", type=int, default=3, help="of each window and condition [3]")
    parser.add_argument("--processes", type=int, default=cpu_count() or 1, help="at a time [one for each CPU]")
    options = parser.parse_args()
    began_s = time.monotonic()
    try:
        log = job_log.load(options.log)
    except TraceError as error:
        parser.error(str(error))
    nodes = options.nodes or log.size or max(job.nodes for job in log.jobs)
    some = windows(log.jobs, nodes, options.size, options.windows)
    if len(some) < 2:
        parser.error(f"the log has fewer than two windows of {options.size} jobs: choose a smaller --size")
    with ProcessPoolExecutor(options.processes) as pool:
        run = partial(courses_of, nodes=nodes, courses=options.courses)
        found = list(pool.map(run, enumerate(some)))
    show(
        options.json,
        {"nodes": nodes, "windows": len(some), "size": options.size, "courses": options.courses},
        compared(found, CONDITIONS),
        f"{len(some)} windows of {options.size} jobs on {nodes} nodes, {options.courses} courses each, "
        f"{time.monotonic() - began_s:.0f} s",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
