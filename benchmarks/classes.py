"""The time of decisions on several classes of nodes with caps and mixing trainers, and the quality of their plans.

    python -m benchmarks.classes [--json] [--trainers N] [--nodes N ...] [--classes N] [--seeds N] [--bound-s S]

Trainers as a daemon has them before it has seen any run: alike on all classes, and together they want more nodes than
there are. What the daemon asks for (`bftd.core.planning.planning`) is solved as it asks, and held against HiGHS given
the same time, and given `--bound-s` seconds, whose bound is what the shares are of.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import percent, table
from bftd.core.planning.planning import CLASSES_GAP, CLASSES_TIME_LIMIT_S, QUICK
from milp import Cap, Curve, NodeSpec, Plan, Problem, TrainerSpec, solve

USERS = 7
CASES: dict[str, Callable[[Problem], Problem]] = {
    "neither": lambda problem: problem,
    "caps": lambda problem: _capped(problem),
    "one mixes": lambda problem: _mixing(problem, 1),
    "ten mix, caps": lambda problem: _capped(_mixing(problem, 10)),
}


def build(trainers: int, nodes: int, classes: int, seed: int, *, started: bool) -> Problem:
    """Trainers without nodes, or where `started` on some of one class each."""
    rng = random.Random(f"{trainers} {nodes} {classes} {seed}")
    pool = tuple(NodeSpec(f"n{number}", f"class{number % classes}") for number in range(nodes))
    free = [[node.name for node in pool[first::classes]] for first in range(classes)]
    specs = []
    for number in range(trainers):
        rate, most = rng.uniform(50, 500), rng.randint(64, 256)
        names = free[rng.randrange(classes)]
        held = names[: rng.randint(0, most)] if started else []
        del names[: len(held)]
        points = (0, 1, 4, 16, 64, 256)
        curve = Curve(points, tuple(rate * count**0.9 for count in points))
        low = rng.randint(1, 4)
        held = held if len(held) >= low else []
        specs.append(
            TrainerSpec(f"t{number}", low, most, 2.0, 1.0, curve, current=tuple(held), user=f"u{number % USERS}")
        )
    return Problem(pool, tuple(specs), 120.0)


def _capped(problem: Problem) -> Problem:
    """Each user gets at most a third more than an equal share."""
    most = len(problem.nodes) * 4 // (3 * USERS)
    return replace(problem, caps=tuple(Cap(most, user=f"u{number}") for number in range(USERS)))


def _mixing(problem: Problem, count: int) -> Problem:
    """The first trainers may mix classes."""
    mixing = tuple(replace(trainer, mixes_classes=True) for trainer in problem.trainers[:count])
    return replace(problem, trainers=mixing + problem.trainers[count:])


def decided(problem: Problem) -> Plan:
    """The plan that the daemon would carry out."""
    hard = problem.caps or any(trainer.mixes_classes for trainer in problem.trainers)
    name = QUICK if hard else "auto"
    return solve(problem, name, time_limit_s=CLASSES_TIME_LIMIT_S, gap=CLASSES_GAP, explain=False)


def measure(case: str, problems: list[Problem], bound_s: float) -> dict[str, Any]:
    """Seconds, and the shares of the proven bound."""
    taken_s, shares, highs = [], [], []
    for problem in problems:
        begun_s = time.perf_counter()
        plan = decided(problem)
        taken_s.append(time.perf_counter() - begun_s)
        soon = solve(problem, "highs", time_limit_s=CLASSES_TIME_LIMIT_S, gap=CLASSES_GAP, explain=False)
        bound = min(solve(problem, "highs", time_limit_s=bound_s, gap=CLASSES_GAP, explain=False).bound, plan.bound)
        shares.append(plan.objective / bound)
        highs.append(soon.objective / bound)
    return {
        "case": case,
        "nodes": len(problems[0].nodes),
        "median_s": statistics.median(taken_s),
        "worst_s": max(taken_s),
        "least_share": min(shares),
        "median_share": statistics.median(shares),
        "highs_least_share": min(highs),
        "taken_s": taken_s,
        "shares": shares,
    }


def decisions(found: Mapping[str, Any]) -> str:
    """A row for each case; a cell has the median and worst seconds, and the least share of the bound."""
    sizes = list(dict.fromkeys(row["nodes"] for row in found["rows"]))
    lines = []
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        mine = {row["nodes"]: row for row in found["rows"] if row["case"] == case}
        lines.append([case, *(_cell(mine[size]) for size in sizes)])
    return table(["trainers", *(f"{size:,} nodes: median, worst, least share" for size in sizes)], lines)


def _cell(row: Mapping[str, Any]) -> str:
    return f"{row['median_s']:.2f} s, {row['worst_s']:.2f} s, {percent(row['least_share'])}"


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The least share of the bound among all cases, and among all shares."""
    shares = [share for row in found["rows"] for share in row["shares"]]
    return {"least-share": Figure(percent(min(shares), 0), min(shares), (min(shares), max(shares)))}


_WORDS = ("benchmarks.classes", "--seeds", "1", "--bound-s", "6")
EVIDENCE = {"classes": Benchmark(_WORDS, 2.0, {"decisions": decisions}, _figures)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trainers", type=int, default=35)
    parser.add_argument("--nodes", type=int, nargs="+", default=[800, 5000])
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bound-s", type=float, default=8.0)
    asked = parser.parse_args()
    rows = []
    for nodes in asked.nodes:
        problems = [
            build(asked.trainers, nodes, asked.classes, seed, started=started)
            for seed in range(asked.seeds)
            for started in (False, True)
        ]
        rows += [measure(case, list(map(change, problems)), asked.bound_s) for case, change in CASES.items()]
    found = rounded({"trainers": asked.trainers, "classes": asked.classes, "rows": rows})
    print(json.dumps(found, indent=2) if asked.json else decisions(found))


if __name__ == "__main__":
    main()
