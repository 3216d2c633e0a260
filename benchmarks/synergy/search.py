"""The number of CPUs that Synergy's search tries, to find those that a job can use, on the public matrices.

    python -m benchmarks.synergy.search [--json] [--matrices FILE] [--seeds N]

Four parts. *Recorded*: each curve (all rows at full memory) searched on its own axis. *Every CPU*: the same curves on
whole CPUs, 1 to the most of the axis, with straight lines between rows. *Noise*: these with every rate off by up to so
much, at random; search and full sweep are each held against the full sweep of the exact curve, since what is measured
is never exact. *Generated*: curves of three forms, from one that ends in a knee to one that never ends to rise, on
which search and sweep do not mean the same. A step is one place on the axis that is searched; `lost` is the part of the
best throughput that the demand leaves.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import brief_percent, table
from sizing.base.errors import UsageError
from sizing.cpu import matrices_file
from sizing.cpu.sensitivity import search
from sizing.cpu.sensitivity.matrix import Matrices, Matrix

MATRICES = Path(__file__).parents[3] / "shared" / "data" / "sizing" / "synergy-matrices.json"
BOUNDS = {"same_demand": 0.95, "points_most": 6}
HEAD = (
    "curves",
    "number",
    "same demand as the full sweep within one step",
    "points: mean, most",
    "of",
    "speed lost at most",
)
NOISE = (0.01, 0.02, 0.03, 0.05)
Curve = Mapping[float, float]
WHOLE = tuple(map(float, range(1, 25)))
FORMS: Mapping[str, Callable[[float, float], float]] = {
    "in proportion, then flat": lambda cpus, knee: min(cpus, knee),
    "bends: 1 - exp(-c / k)": lambda cpus, knee: 1 - math.exp(-cpus / knee),
    "bends slowly: c / (c + k)": lambda cpus, knee: cpus / (cpus + knee),
}
"""Rates by CPUs, and how many of them the form reaches its knee with, or bends at."""


def recorded(matrix: Matrix) -> Curve:
    """Rates by CPUs at full memory."""
    return dict(zip(matrix.cpus, map(max, matrix.rates), strict=True))


def every_cpu(matrix: Matrix) -> Curve:
    """The same on whole CPUs."""
    known = recorded(matrix)
    whole = tuple(map(float, range(1, int(max(known)) + 1)))
    return search.curve(search.SearchState(whole, known))


def apart(cpus: Sequence[float], one: float, other: float) -> int:
    """Steps of the axis between two demands."""
    return abs(cpus.index(one) - cpus.index(other))


def of_curve(curve: Curve) -> dict[str, Any]:
    """The search and the full sweep on one curve."""
    cpus = tuple(curve)
    found = search.search(cpus, curve.__getitem__)
    full = search.sweep(cpus, tuple(curve.values()))
    return {
        "cpus": found.demand,
        "full_sweep_cpus": full,
        "steps_apart": apart(cpus, found.demand, full),
        "points_tried": len(found.tried),
        "points_of_sweep": len(cpus),
        "lost": 1 - curve[found.demand] / max(curve.values()),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is said of many curves."""
    return {
        "curves": len(rows),
        "same_demand": sum(row["steps_apart"] <= 1 for row in rows) / len(rows),
        "exactly": sum(row["steps_apart"] == 0 for row in rows) / len(rows),
        "points_mean": sum(row["points_tried"] for row in rows) / len(rows),
        "points_most": max(row["points_tried"] for row in rows),
        "sweep_most": max(row["points_of_sweep"] for row in rows),
        "lost_most": max(row["lost"] for row in rows),
    }


def of_noise(curves: Sequence[Curve], noise: float, seeds: int) -> dict[str, Any]:
    """Search and sweep of curves that are off by up to `noise`, against the sweep of the exact ones."""
    kept: dict[str, list[int]] = {"search": [], "sweep": []}
    points = []
    for number, curve in enumerate(curves):
        cpus, exact = tuple(curve), search.sweep(tuple(curve), tuple(curve.values()))
        for seed in range(seeds):
            chance = random.Random(f"{number} {seed}")
            seen = {at: rate * (1 + chance.uniform(-noise, noise)) for at, rate in curve.items()}
            found = search.search(cpus, seen.__getitem__)
            points.append(len(found.tried))
            kept["search"].append(apart(cpus, found.demand, exact))
            kept["sweep"].append(apart(cpus, search.sweep(cpus, tuple(seen.values())), exact))
    return {
        "noise": noise,
        **{f"{name}_same_demand": sum(each <= 1 for each in steps) / len(steps) for name, steps in kept.items()},
        **{f"{name}_steps_most": max(steps) for name, steps in kept.items()},
        "points_mean": sum(points) / len(points),
        "points_most": max(points),
    }


def of_form(form: Callable[[float, float], float], count: int) -> dict[str, Any]:
    """Search and sweep of generated curves on 1 to 24 CPUs."""
    chance = random.Random(0)
    knees = [chance.uniform(1, 24) for _ in range(count)]
    return summary([of_curve({cpus: form(cpus, knee) for cpus in WHOLE}) for knee in knees])


def run(matrices: Matrices, seeds: int) -> dict[str, Any]:
    """All parts; `seeds` are for the noise of each curve, and as many curves are generated of each form."""
    kinds: dict[str, Callable[[Matrix], Curve]] = {"recorded": recorded, "every_cpu": every_cpu}
    curves = {kind: {name: make(each.matrix) for name, each in matrices.items()} for kind, make in kinds.items()}
    rows = {kind: {name: of_curve(curve) for name, curve in each.items()} for kind, each in curves.items()}
    told = {kind: summary(list(each.values())) for kind, each in rows.items()}
    reached = told["recorded"]
    return {
        "bounds": BOUNDS,
        "reached": reached["same_demand"] >= BOUNDS["same_demand"] and reached["points_most"] <= BOUNDS["points_most"],
        **told,
        "noise": [of_noise(list(curves["every_cpu"].values()), noise, seeds) for noise in NOISE],
        "generated": {name: of_form(form, seeds) for name, form in FORMS.items()},
        "curves": rows,
    }


def curves(found: Mapping[str, Any]) -> str:
    """A row for each kind of curves."""
    parts = {"Synergy's, rows of the file": found["recorded"], "Synergy's, every CPU": found["every_cpu"]} | {
        f"generated: {name.rpartition(': ')[2]}": found["generated"][name] for name in FORMS
    }
    rows = [
        [
            name,
            each["curves"],
            brief_percent(each["same_demand"]),
            f"{each['points_mean']:.1f}, {each['points_most']}",
            each["sweep_most"],
            brief_percent(each["lost_most"]),
        ]
        for name, each in parts.items()
    ]
    return table(HEAD, rows)


def noise(found: Mapping[str, Any]) -> str:
    """A row for each level of noise: the shares of curves on which search and sweep are within one step."""
    rows = [
        [brief_percent(each["noise"]), *(brief_percent(each[f"{name}_same_demand"]) for name in ("search", "sweep"))]
        for each in found["noise"]
    ]
    return table(["rates off by up to", "search within one step", "full sweep"], rows)


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The shares at each level of noise; the seeds are the same in each run."""
    return {
        f"{name}-{100 * each['noise']:.0f}": Figure(brief_percent(share), share, (share, share))
        for each in found["noise"]
        for name, share in (("search", each["search_same_demand"]), ("sweep", each["sweep_same_demand"]))
    }


EVIDENCE = {
    "synergy_search": Benchmark(("benchmarks.synergy.search",), 0.1, {"curves": curves, "noise": noise}, _figures)
}


def main() -> None:
    """Print the table, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--matrices", type=Path, default=MATRICES)
    parser.add_argument("--seeds", type=int, default=100)
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error("--seeds must be 1 or more")
    try:
        matrices = matrices_file.load(args.matrices)
    except UsageError as error:
        raise SystemExit(f"{error} (--matrices): the public ones are no part of the repository") from None
    found = rounded(run(matrices, args.seeds))
    print(json.dumps(found, indent=2) if args.json else f"{curves(found)}\n\n{noise(found)}")


if __name__ == "__main__":
    main()
