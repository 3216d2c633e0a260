"""The share of plans that are placed of those that can be, beside Frenzy's printed algorithm, and the time of it.

    python -m benchmarks.sizing.placement [--json] [--instances N] [--nodes N] [--rounds N] [--seed N]

An instance is a partition of several types of GPU with whatever is idle, and one to four plans. What can be done is
worked out apart from the placement: the idle GPUs of one type, in whole tensor-parallel groups, are enough for a plan.
Every placement is checked against what was idle. The algorithm as printed knows of no tensor parallelism, which counts
only where it places.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from sizing.choice.place import PlacementRequest, place
from sizing.inventory.gpus import CATALOGUE, GIB
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from sizing.tracer.runs.rounds import interval

BOUND_S = 0.010
TYPES = ("t4", "v100-sxm-32gb", "a100-sxm-40gb", "h100-sxm-80gb", "h200-sxm-141gb")
PER_NODE = (1, 2, 4, 8)
NEEDS_GIB = (8, 12, 14, 20, 28, 36, 60, 120)


def build(rng: random.Random, nodes: int, most_types: int = 3) -> Inventory:
    """A partition of so many nodes in groups of one type each, with random idle GPUs."""
    kinds = rng.sample(TYPES, rng.randint(1, most_types))
    names = [f"n{number}" for number in range(nodes)]
    cuts = sorted(rng.sample(range(1, nodes), len(kinds) - 1)) if nodes >= len(kinds) else []
    groups = []
    for kind, first, end in zip(kinds, [0, *cuts], [*cuts, nodes], strict=False):
        gpus = rng.choice(PER_NODE)
        idle = {name: rng.randint(0, gpus) for name in names[first:end]}
        groups.append(GpuNodes(tuple(idle), kind, gpus, 64, 512 * GIB, kind, idle=idle))
    types = {group.gpu_type: CATALOGUE[group.gpu_type] for group in groups}
    return Inventory(types, (PartitionOffer("gpu", tuple(groups)),))


def wishes(rng: random.Random, most_gpus: int) -> list[PlacementRequest]:
    """Plans of a model, from the best on: any number of GPUs with any need, in groups that divide it."""
    found = []
    for _ in range(rng.randint(1, 4)):
        tp = rng.choice((1, 1, 1, 2, 4))
        found.append(PlacementRequest(tp * rng.randint(1, max(1, most_gpus // tp)), rng.choice(NEEDS_GIB) * GIB, tp))
    return found


def usable_gpus(ask: PlacementRequest, there: Inventory) -> dict[str, list[int]]:
    """What a plan can have of each node, by type that holds it."""
    found: dict[str, list[int]] = {}
    for group in there.offers[0].groups:
        if there.types[group.gpu_type].memory_bytes >= ask.need_bytes:
            found.setdefault(group.gpu_type, []).extend(idle // ask.tp * ask.tp for idle in group.idle.values())
    return found


def faults(ask: PlacementRequest, nodes: Mapping[str, int], there: Inventory) -> set[str]:
    """What is wrong with a placement."""
    idle = {node: count for group in there.offers[0].groups for node, count in group.idle.items()}
    kinds = {node: group.gpu_type for group in there.offers[0].groups for node in group.nodes}
    wrong = set()
    if any(count > idle[node] for node, count in nodes.items()):
        wrong.add("over capacity")
    if len({kinds[node] for node in nodes}) > 1:
        wrong.add("several types")
    if any(there.types[kinds[node]].memory_bytes < ask.need_bytes for node in nodes):
        wrong.add("too little memory")
    if any(count % ask.tp for count in nodes.values()):
        wrong.add("cut tensor-parallel groups")
    if sum(nodes.values()) != ask.gpus:
        wrong.add("other number of GPUs")
    return wrong


def as_printed(
    asks: Sequence[PlacementRequest], there: Inventory
) -> tuple[str, PlacementRequest | None, dict[str, int]]:
    """Algorithm 1 line by line: how it ends, with the plan that it chose and what it gave."""
    size = {node: there.types[group.gpu_type].memory_bytes for group in there.offers[0].groups for node in group.nodes}
    idle = {node: count for group in there.offers[0].groups for node, count in group.idle.items()}
    chosen = None
    for ask in asks:
        if sum(count for node, count in idle.items() if size[node] >= ask.need_bytes) >= ask.gpus:
            chosen = ask
            break
    if chosen is None:
        return "no plan", None, {}
    left, given = chosen.gpus, Counter[str]()
    while left > 0:
        sizes = [size[node] for node, count in idle.items() if count and size[node] >= chosen.need_bytes]
        if not sizes:
            return "no GPU left", chosen, dict(given)
        nodes = sorted((node for node in idle if size[node] > min(sizes)), key=idle.__getitem__)
        if not nodes:
            return "empty list", chosen, dict(given)
        one = next((node for node in nodes if idle[node] >= left), None)
        if one is not None:
            given[one] += left
            break
        if idle[nodes[-1]] == 0:
            return "endless loop", chosen, dict(given)
        given[nodes[-1]] += idle[nodes[-1]]
        left -= idle[nodes[-1]]
        idle[nodes[-1]] = 0
    return "placed", chosen, dict(given)


def compare(instances: int, seed: int) -> dict[str, Any]:
    """Both algorithms on the same instances."""
    rng = random.Random(seed)
    ours, printed, wrong, printed_wrong = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    feasible = several = 0
    for _ in range(instances):
        there = build(rng, rng.randint(3, 12))
        asks = wishes(rng, 12)
        can = any(sum(gpus) >= ask.gpus for ask in asks for gpus in usable_gpus(ask, there).values())
        mixed = any(sum(map(sum, usable_gpus(ask, there).values())) >= ask.gpus for ask in asks)
        feasible += can
        several += mixed and not can
        found = place(asks, there)
        ours["placed" if found else "no plan"] += 1
        if found is not None:
            wrong.update(faults(asks[found.index], found.nodes, there))
        if can and found is None:
            wrong["feasible and not placed"] += 1
        end, chosen, given = as_printed(asks, there)
        if can:
            printed[end] += 1
        if end == "placed" and chosen is not None and can:
            faulty = faults(chosen, given, there)
            printed_wrong.update(faulty)
            printed_wrong["any of these"] += bool(faulty)
    return {
        "instances": instances,
        "feasible": feasible,
        "only_with_several_types": several,
        "placed": ours["placed"],
        "over_capacity": wrong["over capacity"],
        "wrong": dict(wrong),
        "printed_on_feasible": dict(printed),
        "printed_wrong_placements": dict(printed_wrong),
    }


def timed(nodes: int, rounds: int, seed: int) -> dict[str, Any]:
    """Seconds of a placement on a large cluster, plans that cannot be placed among them."""
    rng = random.Random(seed)
    taken_s, worked_s = [], []
    for _ in range(rounds):
        there = build(rng, nodes, len(TYPES))
        asks = wishes(rng, 4 * nodes)
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        place(asks, there)
        taken_s.append(time.perf_counter() - begun_s)
        worked_s.append(time.process_time() - cpu_s)
    return {
        "nodes": nodes,
        "rounds": rounds,
        "median_s": statistics.median(taken_s),
        "p99_s": statistics.quantiles(taken_s, n=100, method="inclusive")[98],
        "worst_s": max(taken_s),
        "worst_cpu_s": max(worked_s),
        "bound_s": BOUND_S,
        "taken_s": [round(each, 6) for each in taken_s],
    }


def table(result: Mapping[str, Any]) -> str:
    """Ours beside the algorithm as printed, in Markdown, of what `--json` prints."""
    seen, clock, printed = result["placements"], result["time"], result["placements"]["printed_on_feasible"]
    feasible, placed = seen["feasible"], seen["placed"]
    wrong = sum(seen["wrong"].values())
    worst_ms = f"{1e3 * clock['worst_s']:.1f} ms ({1e3 * clock['worst_cpu_s']:.1f} ms of it work)"
    rows = [
        (
            f"placed, of {feasible:,} of {seen['instances']:,} random instances that one type of GPU can hold",
            markdown.bounded(f"{placed:,}", placed == feasible),
            f"{printed.get('placed', 0):,}",
            "all",
        ),
        (
            "of them over capacity, of mixed types, with cut groups or otherwise wrong",
            markdown.bounded(f"{wrong}", not wrong),
            f"{seen['printed_wrong_placements'].get('any of these', 0)}",
            "0",
        ),
        *((f"not placed: {end}", "0", f"{count:,}", "") for end, count in printed.items() if end != "placed"),
        (
            f"a placement on {clock['nodes']:,} nodes: median, 99th percentile",
            f"{1e3 * clock['median_s']:.1f}, {1e3 * clock['p99_s']:.1f} ms",
            "",
            "",
        ),
        (
            f"worst of {clock['rounds']}",
            markdown.bounded(worst_ms, clock["worst_s"] <= BOUND_S),
            "",
            f"{1e3 * BOUND_S:.0f} ms",
        ),
    ]
    return markdown.table(("what", "measured", "HAS as printed", "bound"), rows)


def _figures(result: Any) -> Mapping[str, Figure]:
    placed = result["placements"]["placed"]
    median_s, low_s, high_s = interval(result["time"]["taken_s"])
    return {
        "placed": Figure(f"{placed:,}", placed, (placed, placed)),
        "median": Figure(f"{1e3 * median_s:.1f} ms", median_s, (low_s, high_s)),
    }


EVIDENCE = {"sizing_placement": Benchmark(("benchmarks.sizing.placement",), 0.1, {"table": table}, _figures)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--instances", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    result = {
        "placements": compare(asked.instances, asked.seed),
        "time": timed(asked.nodes, asked.rounds, asked.seed),
    }
    print(json.dumps(result) if asked.json else EVIDENCE["sizing_placement"].markdown(result))


if __name__ == "__main__":
    main()
