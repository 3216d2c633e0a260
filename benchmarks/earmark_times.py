"""The cost of one look at the queue: the copy of Slurm's planner on large clusters with long queues.

    python -m benchmarks.earmark_times [--repeats N] [--json]

The queues are drawn from a seed. Times are the processor's. Memory is the most that Python had at once during one look,
measured apart from time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import table
from bftd.pool.backfill.model import Component, JobEnd, Numbering, PlannerOutcome, QueueEntry
from bftd.pool.backfill.planner import simulate
from slurm_plugin.read.types import Scheduler

BOUND_S = 0.15
BOUND_BYTES = 50 * 2**20
NOW_S = 1_700_000_000.0
# Nodes, waiting jobs, running jobs.
SIZES = ((5_000, 5_000, 400), (10_000, 50_000, 500))
DEPTH = 500


@dataclass(frozen=True)
class Cluster:
    """A cluster as the planner sees it."""

    numbering: Numbering
    ready: int
    ours: int
    ends: list[JobEnd]
    queue: list[QueueEntry]


def _jobs(rng: random.Random, count: int, largest: int, part: Callable[[int], Component]) -> list[QueueEntry]:
    """Waiting jobs of a few to `largest` nodes and of ten minutes to a day."""
    queue = []
    for number in range(count):
        need = min(largest, max(1, int(rng.lognormvariate(2.5, 1.5))))
        limit_s = 60.0 * rng.choice((10, 30, 60, 120, 240, 480, 720, 1440))
        queue.append(QueueEntry(str(number), (part(need),), limit_s, limit_s))
    return queue


def _cluster(nodes: int, running: int, free: float, rng: random.Random, queue: list[QueueEntry]) -> Cluster:
    """Running jobs on all nodes but a part that is `free`, of which four fifths are lent."""
    numbering = Numbering.of(f"n{number}" for number in range(nodes))
    ready = ours = 0
    busy = []
    for number in range(nodes):
        if rng.random() < free:
            ready |= 1 << number
            ours |= (rng.random() < 0.8) << number
        else:
            busy.append(number)
    ends: list[JobEnd] = []
    cuts = sorted(rng.sample(range(1, len(busy)), min(running, len(busy)) - 1)) if len(busy) > running else []
    for first, last in zip([0, *cuts], [*cuts, len(busy)], strict=True):
        end_s = NOW_S + rng.randint(1, 86_400)
        ends.append(JobEnd(end_s, sum(1 << number for number in busy[first:last]), (0, first, 0)))
    return Cluster(numbering, ready, ours, ends, queue)


def _nothing(nodes: int, waiting: int, running: int, rng: random.Random) -> Cluster:
    """Every job is larger than what is free now."""
    everything = (1 << nodes) - 1
    few = nodes // 10
    return _cluster(
        nodes, running, 0.05, rng, _jobs(rng, waiting, nodes // 4, lambda need: Component(everything, max(need, few)))
    )


def _all(nodes: int, waiting: int, running: int, rng: random.Random) -> Cluster:
    """All nodes are free or lent, and each of the jobs needs one of them."""
    everything = (1 << nodes) - 1
    return _cluster(nodes, running, 1.0, rng, _jobs(rng, waiting, 1, lambda need: Component(everything, need)))


def _mixed(nodes: int, waiting: int, running: int, rng: random.Random) -> Cluster:
    """A fifth of the nodes is free or lent; small jobs start between large ones that wait."""
    everything = (1 << nodes) - 1
    return _cluster(nodes, running, 0.2, rng, _jobs(rng, waiting, nodes // 2, lambda need: Component(everything, need)))


def _picky(nodes: int, waiting: int, running: int, rng: random.Random) -> Cluster:
    """Jobs ask for features, for nodes by name, for neighbours, for one kind or another."""
    everything = (1 << nodes) - 1
    features = [sum(1 << number for number in rng.sample(range(nodes), nodes // 3)) for _ in range(20)]
    low = (1 << nodes // 2) - 1

    def part(need: int) -> Component:
        kind = rng.random()
        if kind < 0.25:
            return Component(rng.choice(features), min(need, nodes // 3))
        if kind < 0.5:
            return Component(everything, need, required=1 << rng.randrange(nodes) | 1 << rng.randrange(nodes))
        if kind < 0.75:
            return Component(everything, min(need, nodes // 20), contiguous=True)
        return Component(everything, min(need, nodes // 4), either=(low, everything & ~low))

    return _cluster(nodes, running, 0.2, rng, _jobs(rng, waiting, nodes // 2, part))


def _arrays(nodes: int, waiting: int, running: int, rng: random.Random) -> Cluster:
    """Nine tenths of the nodes are lent; arrays of a thousand tasks wait, some for two neighbours each."""
    everything = (1 << nodes) - 1
    queue = [
        QueueEntry(
            str(number),
            (Component(everything, 1 + number % 2, contiguous=number % 2 == 1),),
            3600.0,
            3600.0,
            count=1000,
        )
        for number in range(max(1, waiting // 1000))
    ]
    cluster = _cluster(nodes, running, 0.9, rng, queue)
    return replace(cluster, ours=cluster.ready)


QUEUES = {"arrays": _arrays, "nothing fits": _nothing, "all fits": _all, "mixed": _mixed, "picky": _picky}


def _look(cluster: Cluster, depth: int, scheduler: Scheduler) -> PlannerOutcome:
    return simulate(
        cluster.queue[:depth],
        cluster.numbering,
        cluster.ready,
        cluster.ours,
        cluster.ends,
        (),
        NOW_S,
        scheduler,
        kept={},
        weights=[(1 << len(cluster.numbering.names)) - 1],
        backed_off=(),
    )


def measure(repeats: int, sizes: tuple[tuple[int, int, int], ...] = SIZES, seed: int = 1) -> list[dict[str, Any]]:
    """A row for each size, kind of queue and depth: bf_max_job_test's default, and all jobs."""
    rows = []
    for nodes, waiting, running in sizes:
        for name, make in QUEUES.items():
            cluster = make(nodes, waiting, running, random.Random(seed))
            for depth in (DEPTH, waiting):
                rows.append(_row(cluster, name, depth, running, repeats))
    return rows


def _row(cluster: Cluster, name: str, depth: int, running: int, repeats: int) -> dict[str, Any]:
    """Times of a look after earmarks were made: the usual one."""
    scheduler = Scheduler(depth=depth)
    first_s = time.process_time()
    outcome = _look(cluster, depth, scheduler)
    first_s = time.process_time() - first_s
    times_s = []
    for _ in range(repeats):
        begun_s = time.process_time()
        outcome = _look(cluster, depth, scheduler)
        times_s.append(time.process_time() - begun_s)
    tracemalloc.start()
    _look(cluster, depth, scheduler)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "nodes": len(cluster.numbering.names),
        "waiting": len(cluster.queue),
        "running": running,
        "queue": name,
        "depth": depth,
        "first_s": first_s,
        "median_s": statistics.median(times_s),
        "fastest_s": min(times_s),
        "slowest_s": max(times_s),
        "times_s": times_s,
        "peak_bytes": peak,
        "now": len(outcome.now),
        "planned": len(outcome.later),
        "looked": outcome.looked,
        "cut": outcome.cut,
        "within_bound": statistics.median(times_s) <= BOUND_S and peak <= BOUND_BYTES,
    }


def looks(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each kind of queue; of a size, milliseconds at both depths, and the most MB."""
    sizes = [(nodes, waiting) for nodes, waiting, _ in SIZES]
    lines = []
    for queue in QUEUES:
        cells: list[str] = []
        for nodes, _ in sizes:
            mine = [row for row in rows if (row["queue"], row["nodes"]) == (queue, nodes)]
            cells += [*map(_time, mine), f"{max(row['peak_bytes'] for row in mine) / 2**20:.1f}"]
        lines.append([queue, *cells])
    heads = [
        (f"{nodes:,} nodes, {DEPTH} jobs deep", f"{waiting:,} deep", f"MB on {nodes:,} nodes")
        for nodes, waiting in sizes
    ]
    return table(["queue", *(head for each in heads for head in each)], lines)


def _time(row: Mapping[str, Any]) -> str:
    median, fastest, slowest = (f"{1e3 * row[name]:.0f}" for name in ("median_s", "fastest_s", "slowest_s"))
    missed = ", missed" if row["nodes"] == SIZES[0][0] and not row["within_bound"] else ""
    return f"{median} ({fastest}-{slowest}){missed}"


def _figures(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Figure]:
    """Processor time of a look, between the fastest and the slowest."""
    return {
        f"{row['queue'].replace(' ', '-')}-{row['nodes']}-{row['depth']}": Figure(
            f"{1e3 * row['median_s']:.0f} ms", row["median_s"], (row["fastest_s"], row["slowest_s"])
        )
        for row in rows
    }


EVIDENCE = {"earmark_times": Benchmark(("benchmarks.earmark_times",), 1.0, {"looks": looks}, _figures)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.repeats)
    print(json.dumps(rounded(rows), indent=2) if options.json else looks(rows))


if __name__ == "__main__":
    main()
