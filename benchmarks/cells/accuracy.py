"""Estimated iteration times beside those of real ranks, on this machine's CPU.

    python -m benchmarks.cells.accuracy [--rounds N] [--only WORDS ...] [--json]
    python -m benchmarks.cells.accuracy --cost [--json]

Each case (a transformer, an MLP-mixer, a wide ResNet) is run by two gloo ranks of one thread, each on a core of its
own, as data parallel, tensor parallel and pipelined, with and without micro-batches; by four ranks where there are four
cores. The same processes also run every shard alone and measure the network, and all of that takes turns, round by
round. From the medians of the shards and the communication table, `sizing.cells.plan_estimate` makes its estimate; it
is not told anything of the plans. accuracy = 1 - |estimated - real| / real, of medians. Every case is shown, and
nothing was fitted to them.

This says whether the formula adds up what it should. It is no evidence on GPUs: there transfers hide behind arithmetic,
kernels are started from a queue, and links are others.

`--cost` tells what profiling costs beside a real distributed run and beside profiling all splits, in rank-seconds with
all start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.cells import cases
from benchmarks.cells.cases import Case, Plan
from benchmarks.evidence.model import Benchmark
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell, Stage
from sizing.cells.comm.protocol import Link
from sizing.cells.comm.table import CommTables, table
from sizing.cells.plan_estimate import assembly
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.model.graph import Graph
from sizing.tracer.runs.rounds import interval

LEAST_MEAN, LEAST_WORST = 0.90, 0.80
ROUNDS = 12
_LIMIT_S = 1800.0
STEADY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "OMP_NUM_THREADS": "1"}
"""The C library gives no memory back to the kernel, so that no part is charged with page faults of another."""


@dataclass(frozen=True)
class Row:
    """A plan of a case: what was estimated and what it took, in seconds an iteration; `spread` is real p90 over p10.

    `took_s` has every real iteration.
    """

    case: str
    plan: str
    ranks: int
    estimated_s: float
    low_s: float
    high_s: float
    real_s: float
    spread: float
    took_s: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """1 - |e - r| / r; not below 0."""
        return max(0.0, 1 - abs(self.estimated_s - self.real_s) / self.real_s)

    @property
    def within(self) -> bool:
        """Whether the real time lies in the estimate's interval."""
        return self.low_s <= self.real_s <= self.high_s


def measured(
    case: Case, plans: Sequence[Plan], world: int, rounds: int, *, plain: bool = False
) -> list[dict[str, Any]]:
    """What each rank measured; `plain` runs the plans and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(world), folder, json.dumps(asdict(case)), json.dumps([plan.name for plan in plans]), str(rounds)]
        words += ["plain"] * plain
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.cells.rank", str(rank), *words],
                env=os.environ | STEADY,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        try:
            ends = time.monotonic() + _LIMIT_S
            while any(rank.poll() is None for rank in ranks):
                if any(rank.poll() for rank in ranks) or time.monotonic() > ends:
                    break
                time.sleep(0.2)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
        said = [rank.communicate()[1].decode(errors="replace").strip() for rank in ranks]
        if any(rank.returncode for rank in ranks):
            # a rank that was killed says nothing: the first that ended by itself tells why
            why = next((text for rank, text in zip(ranks, said, strict=True) if rank.returncode > 0), said[0])
            raise RuntimeError(f"{case.name}: a rank ended early: {why[-2000:]}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]


def profiles_of(case: Case, found: Sequence[dict[str, Any]]) -> dict[StageShard, ShardProfile]:
    """The shards' profiles, of all ranks' rounds together."""
    profiles = {}
    for name, facts in found[0]["facts"].items():
        shard = StageShard(*map(int, name.split()[1:]))
        updates = name.replace("shard", "update")
        profiles[shard] = ShardProfile(
            shard=shard,
            device="cpu",
            compute_s=_median([s for rank in found for s in rank["seconds"][name]]),
            update_s=_median([s for rank in found for s in rank["seconds"][updates]]),
            parameters=facts["parameters"],
            weight_bytes=4 * facts["parameters"],
            state_bytes=12 * facts["parameters"],
            activation_bytes=0,
            peak_bytes=0,
            exchanges=tuple(Exchange("all_reduce", size, calls) for size, calls in facts["exchanges"]),
            rounds=len(found[0]["seconds"][name]),
            profile_s=0.0,
            torch="",
        )
    return profiles


def _median(samples: Sequence[float]) -> Estimate:
    value, low, high = interval(samples)
    return Estimate(value, low, high, "measured")


def tables_of(found: Sequence[dict[str, Any]]) -> CommTables:
    """The communication tables, a collective being over when its last rank is."""
    samples: dict[tuple[str, int], dict[int, list[float]]] = {}
    for name in found[0]["seconds"]:
        kind, count, *size = name.split()
        if kind in ("all_reduce", "send_recv"):
            rounds = zip(*(rank["seconds"][name] for rank in found), strict=True)
            samples.setdefault((kind, int(count)), {})[int(size[0])] = [max(each) for each in rounds]
    return CommTables(
        table(kind, Link("cpu", count, 1), of_sizes, "cells.accuracy", "")
        for (kind, count), of_sizes in samples.items()
    )


def cell_of(case: Case, plan: Plan, found: Sequence[dict[str, Any]], count: int) -> Cell:
    """The plan's stages as a cell; what is sent on is that of the whole global batch."""
    stages = []
    share = plan.micro_batches * plan.dp
    cuts = cases.cut(case, count, plan)
    for first, last in cuts:
        facts = found[0]["facts"][f"shard {first} {last} {case.batch // share} {plan.tp}"]
        across = 0 if last == cuts[-1][1] else facts["across_bytes"] * share
        stages.append(Stage(first, last, plan.dp * plan.tp, 0, across, facts["parameters"]))
    return Cell("cpu", tuple(stages))


def rows_of(case: Case, plans: Sequence[Plan], found: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Each plan's estimate beside what it took."""
    profiles, tables = profiles_of(case, found), tables_of(found)
    count = 1 + max(shard.last for shard in profiles)
    for plan in plans:
        cell = cell_of(case, plan, found, count)
        whole = assembly(
            cell,
            Graph(case.name, case.batch, (), "modules"),
            profiles,
            tables,
            global_batch=case.batch,
            per_node=len(found),
            gpu_bytes=float("inf"),
            micro_batches=plan.micro_batches,
        )
        samples = [whole.sample(index, Parallel(plan.dp, plan.tp)) for index in range(len(cell.stages))]
        step_s = whole.plan([sample for sample in samples if sample is not None]).step_s
        rounds = zip(*(rank["seconds"][f"plan {plan.name}"] for rank in found), strict=True)
        took = sorted(max(each) for each in rounds)
        spread = took[int(0.9 * (len(took) - 1))] / took[int(0.1 * (len(took) - 1))]
        yield Row(
            case.name,
            plan.name,
            plan.ranks,
            step_s.value,
            step_s.low,
            step_s.high,
            statistics.median(took),
            spread,
            tuple(round(each, 5) for each in took),
        )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Over all rows."""
    return {
        "cases": len(rows),
        "mean": statistics.fmean(row.accuracy for row in rows),
        "worst": min(row.accuracy for row in rows),
        "within_interval": sum(row.within for row in rows),
    }


def overall(result: Mapping[str, Any]) -> str:
    """The summary in Markdown, of what `--json` prints."""
    found = result["accuracy"]
    rows = (
        (f"accuracy, mean of {found['cases']}", found["mean"], LEAST_MEAN),
        ("accuracy, worst", found["worst"], LEAST_WORST),
    )
    return markdown.table(
        ("what", "measured", "bound"),
        [
            *(
                (name, markdown.bounded(markdown.percent(value), value >= bound), markdown.percent(bound, 0))
                for name, value, bound in rows
            ),
            ("real time within the estimate's interval", f"{found['within_interval']} of {found['cases']}", ""),
        ],
    )


def by_plan(result: Mapping[str, Any]) -> str:
    """A row a plan, over all models, in Markdown."""
    plans: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        plans.setdefault(row["plan"], []).append(row)
    return markdown.table(
        ("plan", "models", "accuracy, mean", "worst", "real time within the interval"),
        (
            (
                plan,
                len(rows),
                markdown.percent(statistics.fmean(row["accuracy"] for row in rows)),
                markdown.percent(min(row["accuracy"] for row in rows)),
                sum(row["within"] for row in rows),
            )
            for plan, rows in plans.items()
        ),
    )


def table_of_plans(result: Mapping[str, Any]) -> str:
    """A row a model and plan, in Markdown."""
    return "\n".join(
        (
            "| model | plan | estimated, ms | real, ms | accuracy | spread of real |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                f"| {row['case']} | {row['plan']} | {1e3 * row['estimated_s']:.0f} ({1e3 * row['low_s']:.0f}-"
                f"{1e3 * row['high_s']:.0f}) | {1e3 * row['real_s']:.0f} | {row['accuracy']:.1%} "
                f"| {row['spread']:.2f} |"
                for row in result["rows"]
            ),
        )
    )


EVIDENCE = {
    "cells": Benchmark(
        ("benchmarks.cells.accuracy", "--rounds", "5"),
        8.0,
        {"overall": overall, "by-plan": by_plan, "plans": table_of_plans},
    )
}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose name has one of these words in it")
    parser.add_argument("--cost", action="store_true", help="what profiling costs, in rank-seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.cost:
        from benchmarks.cells import cost

        cost.report(options.json)
        return
    chosen = [each for each in cases.CASES if not options.only or any(word in each.name for word in options.only)]
    if not chosen:
        parser.error(f"no case has {options.only[0]!r} in its name; there are {[each.name for each in cases.CASES]}")
    cores = len(os.sched_getaffinity(0))
    left_out = ""
    kinds: list[tuple[int, tuple[cases.Plan, ...]]] = [(2, cases.TWO)]
    if cores >= 4:
        kinds.append((4, cases.FOUR))
    else:
        left_out = f"plans of four ranks were left out: this machine has {cores} cores, and a rank needs one of its own"
    rows: list[Row] = []
    for case in chosen:
        for world, plans in kinds:
            fresh = list(rows_of(case, plans, measured(case, plans, world, options.rounds)))
            rows += fresh
            worst = min(row.accuracy for row in fresh)
            print(f"{case.name}, {world} ranks: worst of {len(fresh)} {worst:.1%}", file=sys.stderr, flush=True)
    each = [asdict(row) | {"accuracy": row.accuracy, "within": row.within} for row in rows]
    result = {"accuracy": summary(rows), "left_out": left_out, "rows": each}
    if options.json:
        print(json.dumps(result))
        return
    print(EVIDENCE["cells"].markdown(result))
    if left_out:
        print(f"\n{left_out}")


if __name__ == "__main__":
    main()
