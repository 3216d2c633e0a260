"""Hold the simulated slurmctld against recorded clusters without pilots.

    python -m benchmarks.twin.recorded [--json] [--courses N] [FILE...]

The recordings are those of benchmarks.backfill.recorder. The simulation gets the recorded stream of jobs, the site's
settings, and the phase of the first recorded backfill cycle; every other delay is drawn, anew for each course. A course
is compared job by job: whether the job starts within one backfill cycle of its recorded start, and on the same nodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.backfill.recording import Recording, load
from benchmarks.backfill.replay import RECORDINGS
from benchmarks.evidence.model import Benchmark
from benchmarks.twin.streams import Shape, stream_on
from bftd.simulation.slurm.controller import Controller

COURSES = 10
WANTED_ALIKE = ("bf30", "default")
LEAST_STARTS, LEAST_NODES = 0.95, 0.90
"""Aims in the nearest course of these recipes: starts within a cycle, and the same nodes."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """The agreement of a recording with its simulated courses; shares are of the jobs that the recording saw start.

    Where two jobs swap nodes by chance, all that follows differs: the `nearest` is the course with most nodes alike.
    `wait_s` and `simulated_wait_s` are means over the jobs, the second over the courses too, with the least and most.
    """

    name: str
    jobs: int
    within_cycle: float
    same_nodes: float
    within_3_s: float
    nearest_within_cycle: float
    nearest_same_nodes: float
    wait_s: float
    simulated_wait_s: float
    least_wait_s: float
    most_wait_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    start_s: float
    submit_s: float
    nodes: frozenset[str]


def likeness(recording: Recording, courses: int) -> Likeness:
    """Compare a recording with some courses of its simulation."""
    seen = _starts(recording)
    begin_s = min(one.submit_s for one in seen.values())
    scheduler = replace(recording.snapshots[-1].scheduler, cycle_s=None, cycled_s=None)
    shape = Shape(jobs=recording.head["jobs"], stretch=recording.head["stretch"])
    plain = replace(shape.site(), scheduler=scheduler)
    if scheduler.newer:  # its background loop sleeps to the next full second
        plain = replace(plain, tick_s=1.0)
    if recording.head["recipe"] != "default":
        plain = replace(plain, sched_interval_s=1.0, batch_delay_s=0.0)
    phase_s = (recording.cycles[0].begin_s - begin_s) % scheduler.interval_s
    within, same, close, waits = [], [], [], []
    for course in range(courses):
        site, jobs = stream_on(plain, shape, recording.head["seed"], begin_s)
        runs = Controller(site, jobs, course).run(phase_s)
        pairs = [(run, seen[str(run.job.number + 1)]) for run in runs if str(run.job.number + 1) in seen]
        apart = [abs(run.start_s - (one.start_s + 0.5)) for run, one in pairs]
        within.append(sum(one <= scheduler.interval_s + 1.0 for one in apart) / len(pairs))
        close.append(sum(one < 3.0 for one in apart) / len(pairs))
        same.append(sum(frozenset(site.numbering.of_mask(run.nodes)) == one.nodes for run, one in pairs) / len(pairs))
        waits.append(statistics.mean(run.start_s - run.job.submit_s for run, _ in pairs))
    nearest = max(zip(same, within, strict=True))
    return Likeness(
        recording.name,
        len(seen),
        statistics.mean(within),
        statistics.mean(same),
        statistics.mean(close),
        nearest[1],
        nearest[0],
        statistics.mean(one.start_s + 0.5 - one.submit_s for one in seen.values()),
        statistics.mean(waits),
        min(waits),
        max(waits),
    )


def _starts(recording: Recording) -> dict[str, _Seen]:
    """When and where each job started, by its id."""
    found: dict[str, _Seen] = {}
    for snapshot in recording.snapshots:
        for job in snapshot.jobs:
            if job.state != "PENDING" and job.start_s is not None and job.nodes:
                found.setdefault(job.id, _Seen(job.start_s, job.submit_s, frozenset(job.nodes)))
    return found


def table(found: Sequence[Likeness]) -> str:
    """A line a recording, in Markdown."""
    lines = [
        "| recording | jobs | within a cycle (nearest) | same nodes (nearest) | within 3 s | mean wait | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        bounded = one.name.startswith(WANTED_ALIKE)
        late = ", missed" * (bounded and one.nearest_within_cycle < LEAST_STARTS)
        elsewhere = ", missed" * (bounded and one.nearest_same_nodes < LEAST_NODES)
        lines.append(
            f"| {one.name} | {one.jobs} | {one.within_cycle:.0%} ({one.nearest_within_cycle:.0%}){late} "
            f"| {one.same_nodes:.0%} ({one.nearest_same_nodes:.0%}){elsewhere} | {one.within_3_s:.0%} "
            f"| {one.wait_s:.1f} s | {one.simulated_wait_s:.1f} s ({one.least_wait_s:.1f}-{one.most_wait_s:.1f}) |"
        )
    return "\n".join(lines)


EVIDENCE = {
    "twin_recorded": Benchmark(
        ("benchmarks.twin.recorded",), 0.5, {"table": lambda result: table([Likeness(**row) for row in result])}
    )
}


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.recorded", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="recordings [those of the tests]")
    parser.add_argument("--courses", type=int, default=COURSES, help=f"courses of the simulation [{COURSES}]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    options = parser.parse_args()
    try:
        found = [likeness(load(file), options.courses) for file in options.files or sorted(RECORDINGS.glob("*.xz"))]
    except (OSError, ValueError) as error:
        print(f"twin.recorded: {error}", file=sys.stderr)
        return 1
    print(json.dumps([asdict(one) for one in found], indent=2) if options.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
