"""The time that Crius takes to schedule one arrival, by search depth: 1,280 GPUs of four types, 200 jobs running.

    python -m benchmarks.crius.decision [--json] [--jobs N] [--arrivals N] [--seed N] [--depths 1,2,3,4,5]

The cluster is that of the paper's Table 1, the models are those of its Table 2, with rates made up by a plain rule
(compute, an all-reduce over the nodes, a pipeline's bubble, memory): the time of a decision hardly depends on them, and
nothing else is reported. The cluster is filled by arrivals until so many jobs run and hardly a GPU is idle; then each
of the arrivals measured finds the same full cluster. Times are of the processor. The paper: 0.88 s at depth 1 to 5.98 s
at depth 5.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from sizing.tracer.runs.rounds import interval
from studies.crius.options import Options
from studies.crius.policy import CriusPolicy
from studies.crius.virtual import Virtual
from studies.simulation.types import Allocation, Moment, Running, SimulatedJob, Waiting

BOUND_S = 0.2
CLUSTER = {"a100": 320, "a40": 320, "a10": 320, "v100": 320}
# TFLOP/s with half precision, bytes of memory, bytes a second between GPUs, all of the order of data sheets
GPUS = {
    "a100": (150e12, 40e9, 12e9),
    "a40": (70e12, 48e9, 10e9),
    "a10": (55e12, 24e9, 20e9),
    "v100": (60e12, 32e9, 12e9),
}
# parameters in billions (Table 2), the share of them that computes, tokens or pixels' equivalent of a batch
MODELS = {
    **{f"wresnet-{size}b": (size, 1.0, 0.6e6) for size in (0.5, 1.0, 2.0, 4.0, 6.8)},
    **{f"bert-{size}b": (size, 1.0, 0.13e6) for size in (0.76, 1.3, 2.6, 6.7)},
    **{f"moe-{size}b": (size, 0.3, 0.26e6) for size in (0.69, 1.3, 2.4, 10.0, 27.0)},
}


class MadeUp:
    """Rates of Table 2's models by a plain rule; 0 where the states do not fit."""

    def __init__(self) -> None:
        self.rate = cache(self._rate)

    def _rate(self, model: str, allocation: Allocation) -> float:
        billions, share, tokens = MODELS[model]
        flops_s, memory, link = GPUS[allocation.gpu_type]
        gpus, stages = allocation.gpus, allocation.stages
        if 14e9 * billions / gpus > 0.9 * memory:
            return 0.0
        compute_s = 6e9 * billions * share * tokens / (0.4 * flops_s * gpus)
        bubble = 1 + (stages - 1) / (4 * stages)
        ring = gpus // stages
        reduce_s = 4e9 * billions / stages * (ring - 1) / max(ring, 1) / link if ring > 1 else 0.0
        sends_s = 2e-3 * (stages - 1)
        return 1 / (compute_s * bubble + 0.5 * reduce_s + sends_s)

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        """Without pipeline stages."""
        return self.rate(model, Allocation(gpu_type, gpus))


def draw(rng: random.Random, number: int, speeds: MadeUp) -> SimulatedJob:
    """A job that fits what it asks for, of a few hours."""
    while True:
        model, gpu_type = rng.choice(list(MODELS)), rng.choice(list(CLUSTER))
        gpus = rng.choices((1, 2, 4, 8, 16, 32), (2, 4, 5, 5, 2, 1))[0]
        rate = max(speeds.rate(model, Allocation(gpu_type, gpus, 1 << stages)) for stages in range(gpus.bit_length()))
        if rate > 0:
            return SimulatedJob(f"j{number}", model, float(number), rate * rng.uniform(3600, 20 * 3600), gpus, gpu_type)


def fill(rng: random.Random, jobs: int, speeds: MadeUp) -> tuple[Running, ...]:
    """So many running jobs, as Crius itself has placed them one after the other, on a cluster that they fill."""
    running: dict[str, Running] = {}
    policy = CriusPolicy(speeds, depth=1)
    number = 0
    while len(running) < jobs and number < 20 * jobs:
        job = draw(rng, number, speeds)
        number += 1
        waiting = (Waiting(job, job.iterations),)
        moment = Moment(job.submit_s, tuple(running.values()), waiting, CLUSTER, frozenset({job.id}), False)
        given = policy.decide(moment).allocations
        known = {**{each.job.id: (each.job, each.left) for each in running.values()}, job.id: (job, job.iterations)}
        running = {id: Running(*known[id][:1], held, 0.0, known[id][1]) for id, held in given.items()}
    return tuple(running.values())


def measure(jobs: int, arrivals: int, seed: int, depths: Sequence[int]) -> dict[str, Any]:
    """Seconds of a decision for each depth, the same arrivals at the same full cluster."""
    rng, speeds = random.Random(seed), MadeUp()
    running = fill(rng, jobs, speeds)
    idle = dict(CLUSTER)
    for each in running:
        idle[each.allocation.gpu_type] -= each.allocation.gpus
    coming = [draw(rng, 10**6 + number, speeds) for number in range(arrivals)]
    found = {}
    for depth in depths:
        policy = CriusPolicy(speeds, depth=depth)
        taken_s, placed, gains, nodes, cut = [], 0, [], [], 0
        for job in [coming[0], *coming]:
            moment = Moment(float(10**6), running, (Waiting(job, job.iterations),), CLUSTER, frozenset({job.id}), False)
            begun_s = time.process_time()
            decision = policy.decide(moment)
            taken_s.append(time.process_time() - begun_s)
            placed += job.id in decision.allocations
            virtual = Virtual(moment, Options(speeds), restart_s=30.0, deadlines=False)
            before = virtual.objective()
            choice = virtual.schedule(job.id, depth, grow=True)
            gains.append(virtual.objective() - before)
            nodes.append(choice.nodes if choice else 0)
            cut += bool(choice and not choice.exact)
        # the first one warms up
        taken_s, gains, nodes = taken_s[1:], gains[1:], nodes[1:]
        found[str(depth)] = {
            "median_s": statistics.median(taken_s),
            "p95_s": sorted(taken_s)[int(0.95 * (len(taken_s) - 1))],
            "worst_s": max(taken_s),
            "placed": placed - 1,
            "mean_gain": statistics.fmean(gains),
            "median_nodes": statistics.median(nodes),
            "cut_short": cut,
            "taken_s": [round(each, 6) for each in taken_s],
        }
    return {
        "gpus": sum(CLUSTER.values()),
        "types": len(CLUSTER),
        "running": len(running),
        "idle": idle,
        "arrivals": arrivals,
        "bound_s": BOUND_S,
        "depths": found,
    }


def table(result: Mapping[str, Any]) -> str:
    """A row a depth, in Markdown."""
    head = (
        f"search depth, {result['running']} jobs on {result['gpus']:,} GPUs",
        "median, ms (95 % interval)",
        "95th percentile",
        f"worst of {result['arrivals']} (bound: {1e3 * BOUND_S:.0f} ms)",
        "cut short",
    )
    rows = []
    for depth, seen in result["depths"].items():
        median_s, low_s, high_s = interval(seen["taken_s"])
        rows.append(
            (
                depth,
                f"{1e3 * median_s:.1f} ({1e3 * low_s:.1f} to {1e3 * high_s:.1f})",
                f"{1e3 * seen['p95_s']:.1f}",
                markdown.bounded(f"{1e3 * seen['worst_s']:.1f}", seen["worst_s"] <= BOUND_S),
                seen["cut_short"],
            )
        )
    return markdown.table(head, rows)


def _figures(result: Any) -> Mapping[str, Figure]:
    found = {}
    for depth, seen in result["depths"].items():
        median_s, low_s, high_s = interval(seen["taken_s"])
        found[f"depth-{depth}.median"] = Figure(f"{1e3 * median_s:.1f} ms", median_s, (low_s, high_s))
    return found


EVIDENCE = {"decision": Benchmark(("benchmarks.crius.decision",), 0.3, {"table": table}, _figures)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--arrivals", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--depths", default="1,2,3,4,5")
    asked = parser.parse_args()
    depths = asked.depths.split(",")
    if not all(depth.isdecimal() for depth in depths):
        parser.error(f"--depths {asked.depths}: whole numbers with commas, such as 1,3")
    if min(asked.jobs, asked.arrivals) < 1:
        parser.error("--jobs and --arrivals must be 1 or more")
    result = measure(asked.jobs, asked.arrivals, asked.seed, [int(depth) for depth in depths])
    print(json.dumps(result) if asked.json else EVIDENCE["decision"].markdown(result))


if __name__ == "__main__":
    main()
