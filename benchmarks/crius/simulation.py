"""Crius against its baselines on the 1,280 GPUs of the paper's Table 1 (sections 8.3 to 8.6), with a sensitivity run.

    python -m benchmarks.crius.simulation [--seeds 10] [--jobs N] [--processes 2]
                                           [--only heavy,error,...] [--json]

1. heavy, moderate, low: windows of public traces (shared/data/sizing/jobs-cluster*.csv.gz; a seed chooses the window,
   models, types and counts), times between submissions stretched until the jobs ask for 2, 1 and 0.5 times all GPUs.
   Where the traces are not there: Poisson arrivals and lognormal durations.
2. ablations: Crius without changing counts (NA) and without changing types (NH), on a shorter heavy window.
3. testbed: the paper's 64 GPUs (32 A40, 32 A10) and 244 jobs that ask for twice as many (section 8.3).
4. error: a shorter heavy window, with estimates that are wrong by up to 0, 10, 20 and 30 % for every policy that uses
   some.
5. deadlines: a shorter heavy window with the traces' deadlines, Crius-DDL against ElasticFlow.
6. depth: the 64 GPUs at twice the heavy load (section 8.7), with Crius's search depth from 1 to 5.

Windows are of 300 to 600 jobs and not of 13,000, so that ten seeds of all of it end in ten minutes on two cores; --jobs
makes none longer, only shorter. `crius` is the paper's rule, which serves its queue by age in rounds of five minutes.
`crius-patient` is our own, and baselines `-by-gain` serve their queue in its order; seeds are counted from 100, and no
window is of the trace that its patience was chosen on. Every policy sees the same jobs for a seed; ratios are paired by
seed (geometric mean, 95 % interval). Speeds come from data sheets and not profiles (studies.simulation.speeds): what
is compared is schedulers, in a world without noise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evidence.model import Benchmark, Figure
from studies.crius import comparison
from studies.crius.policy import ROUND_S, CriusPolicy
from studies.simulation import report, workload
from studies.simulation.clusters import capacity, crius_testbed, table1
from studies.simulation.engine import simulate
from studies.simulation.models import table2
from studies.simulation.report import Figures
from studies.simulation.types import SimulatedJob

DATA = Path(__file__).parents[3] / "shared" / "data" / "sizing"
ERRORS = (0.0, 0.1, 0.2, 0.3)
GUESSING = ("crius", "crius-patient", "elasticflow-ls", "gavel", "gandiva")
"""Policies that use estimates; first come, first served does not."""
ALL = (*GUESSING, "easy", "fcfs")
ORDERS = (*GUESSING[:3], "elasticflow-ls-by-gain", *GUESSING[3:], "gandiva-by-gain", "easy", "easy-by-gain", "fcfs")
"""Also baselines that serve their queue as `crius-patient` does: what is left between them is not the order's."""
FIRST_SEED = 100
DEPTHS = {f"crius-depth-{depth}": depth for depth in (1, 2, 3, 4, 5)}
"""Crius by its search depth: the most running jobs that one arrival or end may change."""
CHOSEN_ON = "cluster02"
"""Crius's patience was chosen on seeds 0 to 2 of this trace: no table is made of either."""


class Scene(NamedTuple):
    """So many jobs of a trace at a load, and who is compared on it; the first is who the others are held against."""

    trace: str
    load: float
    jobs: int
    policies: Sequence[str]
    error: float = 0.0
    deadlines: bool = False
    testbed: bool = False


SCENES: Mapping[str, Scene] = {
    "heavy": Scene("cluster05", 2.0, 600, ORDERS),
    "moderate": Scene("cluster06", 1.0, 300, ALL),
    "low": Scene("cluster03", 0.5, 300, ALL),
    "ablations": Scene("cluster05", 2.0, 300, ("crius", "crius-na", "crius-nh")),
    "testbed": Scene("cluster05", 2.0, 244, ORDERS, testbed=True),
    **{f"error-{share * 100:.0f}": Scene("cluster05", 2.0, 400, GUESSING, error=share) for share in ERRORS},
    "deadlines": Scene("cluster05", 2.0, 300, ("crius-ddl", "elasticflow"), deadlines=True),
    "depth": Scene("cluster05", 4.0, 120, tuple(DEPTHS), testbed=True),
}
PAPER = {
    "fcfs": "-81.3 %",
    "elasticflow-ls": "-75.8 %",
    "gandiva": "-80.1 %",
    "gavel": "-66.4 %",
    "crius-na": "-60.6 %",
    "crius-nh": "-71.7 %",
}
"""Crius's mean JCT against each in the paper's simulation (section 8.4; 8.6: 2.54 and 3.53 times as long).

On its testbed the paper names only the most: 48.9 % less time, 1.49 times the throughput.
"""
PAPER_UNNAMED = {"moderate": "-64.7 %", "low": "-66.3 %"}
"""Crius's mean JCT against baselines that the text does not name (section 8.4)."""
PAPER_DEADLINES = "1.69x"
"""The share of deadlines that Crius-DDL meets over ElasticFlow's (section 8.5)."""


class Task(NamedTuple):
    """One run."""

    scene: str
    policy: str
    seed: int
    jobs: int


@lru_cache(maxsize=2)
def _site(*, small: bool) -> comparison.Site:
    return comparison.Site.of(crius_testbed() if small else table1(), table2())


@lru_cache(maxsize=4)
def _trace(name: str) -> tuple[workload.TraceJob, ...]:
    path = DATA / f"jobs-{name}.csv.gz"
    if not path.exists():
        return ()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return workload.parse(file.read(), path.name)


@lru_cache(maxsize=4)
def jobs_of(scene: str, seed: int, count: int) -> tuple[SimulatedJob, ...]:
    """The jobs of a scene for a seed."""
    site, asked = _site(small=SCENES[scene].testbed), SCENES[scene]
    trace = _trace(asked.trace)
    part = workload.window(trace, count, seed) if trace else workload.generated(seed, count)
    return workload.jobs_of(
        part, site.models, site.pools, site.speeds, seed=seed, load=asked.load, deadlines=asked.deadlines
    )


def run(task: Task) -> tuple[Task, Figures, float]:
    """One run, and how long it took."""
    jobs = jobs_of(task.scene, task.seed, task.jobs)
    site, error = _site(small=SCENES[task.scene].testbed), SCENES[task.scene].error
    began = time.perf_counter()
    if depth := DEPTHS.get(task.policy):
        policy = CriusPolicy(site.speeds, interval_s=ROUND_S, depth=depth)
        found = report.figures(simulate(jobs, capacity(site.pools), policy, site.speeds), site.batches)
    else:
        found = comparison.run(task.policy, jobs, site, error=error, seed=task.seed)
    return task, found, time.perf_counter() - began


def measured(
    scenes: Sequence[str], seeds: int, jobs: int | None, processes: int
) -> dict[str, dict[str, list[Figures]]]:
    """All runs by scene and policy, in the order of seeds."""

    def count(scene: str) -> int:
        return SCENES[scene].jobs if jobs is None else min(jobs, SCENES[scene].jobs)

    tasks = [
        Task(scene, name, seed, count(scene))
        for scene in scenes
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for name in SCENES[scene].policies
    ]
    found: dict[Task, Figures] = {}
    with ProcessPoolExecutor(processes) as pool:
        for task, figures, took_s in pool.map(run, tasks):
            found[task] = figures
            print(
                f"{len(found)} of {len(tasks)}: {task.scene} {task.policy} {task.seed} {took_s:.1f} s", file=sys.stderr
            )
    return {
        scene: {
            name: [found[Task(scene, name, seed, count(scene))] for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
            for name in SCENES[scene].policies
        }
        for scene in scenes
    }


def windows(told: Mapping[str, Any]) -> str:
    """The scenes with true estimates, in Markdown, of what `to_json` returns."""
    lines = [
        "| window | scheduler | mean JCT, h | 99 %, h | ended | of them in the window | throughput | "
        "restarts a job | JCT of the first against it | paper |",
        "| --- | --- |" + " ---: |" * 6 + " --- | --- |",
    ]
    for name, scene in told.items():
        if name in SCENES and not name.startswith("error"):
            lines += _rows(name, scene)
    return "\n".join(lines)


def errors(told: Mapping[str, Any]) -> str:
    """The scenes with wrong estimates, in Markdown."""
    scenes = {name: scene for name, scene in told.items() if name.startswith("error")}
    return "\n".join(_errors(scenes)) if scenes else ""


def _rows(name: str, scene: Mapping[str, Any]) -> Iterator[str]:
    policies: Mapping[str, Any] = scene["policies"]
    first = next(iter(policies))
    paper = PAPER if name in ("heavy", "ablations") else {}
    for policy, each in policies.items():
        last = paper.get(policy, "")
        if policy == first and name in PAPER_UNNAMED:
            last = f"{PAPER_UNNAMED[name]}, of baselines not named"
        if scene["deadlines"]:
            last = f"{_percent(each['deadlines'], 0, '')} of deadlines met"
            others = [found["deadlines"]["mean"] for named, found in policies.items() if named != first]
            if policy == first and min(others) > 0:
                last += f", {each['deadlines']['mean'] / others[0]:.2f}x the other's; paper: {PAPER_DEADLINES}"
        ended = f"{each['finished']['mean']:.{0 if each['finished']['mean'].is_integer() else 1}f}"
        cells = [
            name if policy == first else "",
            _named(policy),
            _hours(each.get("mean_jct_s")),
            f"{each['p99_jct_s']['mean'] / 3600:.1f}" if "p99_jct_s" in each else "-",
            f"{ended} of {each['jobs']['mean']:.0f}",
            f"{each['window_finished']['mean']:.0f}",
            f"{each['window_normalised']['mean']:.0f}",
            f"{each['restarts']['mean']:.1f}",
            "" if policy == first else _percent(scene[f"{first}_over"][policy]["mean_jct_s"], 1, "+"),
            last,
        ]
        yield f"| {' | '.join(cells)} |"


def _errors(scenes: Mapping[str, Any]) -> Iterator[str]:
    """How the first scheduler does as everybody's estimates get worse."""
    policies = list(next(iter(scenes.values()))["policies"])
    first, others = policies[0], policies[1:]
    named = " | ".join(f"against {_named(other)}" for other in others)
    yield f"| estimates wrong by up to | {first}, mean JCT, h | {named} |"
    yield "| ---: | ---: |" + " --- |" * len(others)
    for scene in scenes.values():
        against = [_percent(scene[f"{first}_over"][other]["mean_jct_s"], 1, "+") for other in others]
        hours = _hours(scene["policies"][first].get("mean_jct_s"))
        yield f"| {scene['error'] * 100:.0f} % | {hours} | {' | '.join(against)} |"


def _named(policy: str) -> str:
    lacks = ", without time slots" * (policy == "elasticflow")
    return policy if policy.startswith("crius") else f"{policy} (simplified{lacks})"


def _hours(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    half = (found["high"] - found["low"]) / 2 / 3600
    return f"{found['mean'] / 3600:.2f}" + (f" ± {half:.2f}" if half else "")  # one seed has no interval


def _percent(found: Mapping[str, float] | None, less: float, sign: str) -> str:
    """A share, less so much, with its interval; "-" where jobs that ended are not the same ones."""
    if found is None:
        return "-"
    mean, low, high = (f"{100 * (found[name] - less):{sign}.1f}" for name in ("mean", "low", "high"))
    return f"{mean} %" + (f" ({low} to {high})" if low != high else "")


def to_json(found: Mapping[str, Mapping[str, Sequence[Figures]]]) -> dict[str, Any]:
    """All scenes; `mean_jct_s` has each policy's by seed."""
    return {
        scene: {
            **SCENES[scene]._asdict(),
            **comparison.to_json(runs),
            "mean_jct_s": {name: [each.mean_jct_s for each in by_seed] for name, by_seed in runs.items()},
        }
        for scene, runs in found.items()
    }


def _figures(result: Any) -> Mapping[str, Figure]:
    found = {}
    for name, scene in result.items():
        if name not in SCENES:
            continue
        first = next(iter(scene["policies"]))
        for other, ratios in scene[f"{first}_over"].items():
            if ratio := ratios["mean_jct_s"]:
                interval = (ratio["low"], ratio["high"])
                found[f"{name}.{other}"] = Figure(_percent(ratio, 1, "+"), ratio["mean"], interval)
        for policy, each in scene["policies"].items():
            if queue := each.get("mean_queue_s"):
                text = f"{queue['mean'] / 3600:.1f} h"
                found[f"{name}.{policy}.queue"] = Figure(text, queue["mean"], (queue["low"], queue["high"]))
    return found


EVIDENCE = {
    "crius": Benchmark(("benchmarks.crius.simulation",), 10.0, {"windows": windows, "errors": errors}, _figures)
}


def main() -> None:
    """Runs what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, choices=range(1, 101), default=10, metavar="N", help="1 to 100")
    parser.add_argument("--jobs", type=int, help="of a window, at most")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="scenes, or what their names begin with")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = [name for name in asked.only.split(",") if name]
    scenes = [scene for scene in SCENES if not wanted or any(scene.startswith(name) for name in wanted)]
    if not scenes:
        sys.exit(f"crius.simulation: --only {asked.only}: no such scene; one of {', '.join(SCENES)}")
    began = time.perf_counter()
    found = measured(scenes, asked.seeds, asked.jobs and max(asked.jobs, 2), max(asked.processes, 1))
    if asked.json:
        print(json.dumps({"seeds": asked.seeds, "jobs": asked.jobs, **to_json(found)}, indent=2))
        return
    print(f"{asked.seeds} seed{'s' * (asked.seeds > 1)} from {FIRST_SEED}; {time.perf_counter() - began:.0f} s")
    print(EVIDENCE["crius"].markdown(to_json(found)))


if __name__ == "__main__":
    main()
