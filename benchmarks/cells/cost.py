"""The cost of profiling a cell beside a real distributed run of it, and beside profiling all splits, in rank-seconds.

Run by `python -m benchmarks.cells.accuracy --cost`. Profiling is `bft size profile` of a model by its sizes: one
process a tensor-parallel size, from its start (Python, torch) to its end, on one core. The real run is of the same
sizes: two ranks from their start, 2 iterations to warm up and 20 more, once for each plan that the estimate covers. The
paper compares with one real job a plan on GPUs (18.1x on average, 2.55x at least); on a CPU start-up is most of either
side.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import markdown
from benchmarks.cells import accuracy, cases
from benchmarks.cells.cases import Case, Plan
from benchmarks.evidence.model import Benchmark
from sizing.cells.cell import Cell, Stage
from sizing.cells.required import micro_batches_of, shard_of, splits_of, wanted
from sizing.cells.shards import StageShard
from sizing.model.config import parse
from sizing.profiles.profile import profile

ITERATIONS = 20


@dataclass(frozen=True)
class Cost:
    """Rank-seconds; `real_s` are of `plans` real runs, None where there are not enough cores for its ranks."""

    cell: str
    shards: int
    sampled_s: float
    all_shards: int
    all_s: float
    plans: int
    real_s: float | None


def costs(case: Case) -> list[Cost]:
    """Of cells of two and of eight ranks, with one stage and with two."""
    sizes = case.sizes
    config = parse(
        f"gpt:h={sizes['hidden']},l={sizes['layers']},a={sizes['heads']},s={sizes['seq']},V={sizes['vocab']}"
    )
    end = sizes["layers"] + 1
    cut = end // 2
    found = []
    for gpus in (2, 8):
        for spans in (((0, end),), ((0, cut), (cut + 1, end))):
            stages = tuple(Stage(first, last, gpus // len(spans), 0, 0, 0) for first, last in spans)
            cell = Cell("cpu", stages)
            batch = case.batch * gpus // 2
            micro_batch = batch // micro_batches_of(cell, batch)
            every = [shard_of(stage, split, micro_batch) for stage in stages for split in splits_of(stage)]
            # a split over more ranks than heads is none
            fits = [shard for shard in every if shard is not None and sizes["heads"] % shard.tp == 0]
            sampled = [shard for shard in wanted(cell, batch, hybrids=True) if shard in fits]
            plans = _plans(len(spans)) if gpus == 2 else []
            sampled_s = _profiled_s(config, sampled)
            found.append(
                Cost(
                    f"{gpus} ranks, {len(spans)} stage{'s' * (len(spans) > 1)}",
                    len(sampled),
                    sampled_s,
                    len(fits),
                    sampled_s if set(fits) == set(sampled) else _profiled_s(config, fits),
                    len(plans),
                    sum(_real_s(case, plan) for plan in plans) if plans else None,
                )
            )
            print(f"{found[-1].cell}: done", file=sys.stderr, flush=True)
    return found


def _plans(stages: int) -> list[Plan]:
    """What the estimate of a cell of two ranks covers."""
    known = {plan.name: plan for plan in cases.TWO}
    return [known["DP2"], known["TP2"]] if stages == 1 else [known["PP2, 8 micro-batches"]]


def _profiled_s(config: object, shards: Sequence[StageShard]) -> float:
    began = time.monotonic()
    profile(config, shards, device="cpu", optimizer="adamw")  # type: ignore[arg-type]
    return time.monotonic() - began


def _real_s(case: Case, plan: Plan) -> float:
    began = time.monotonic()
    accuracy.measured(case, [plan], plan.ranks, ITERATIONS, plain=True)
    return plan.ranks * (time.monotonic() - began)


def table(result: Mapping[str, Any]) -> str:
    """A row a cell, in Markdown, of what `--json` prints."""
    head = (
        f"cell of a {result['case']}, rank-seconds",
        "sampled splits (shards)",
        "all splits (shards)",
        f"real runs of {result['iterations']} iterations (plans)",
        "all / sampled",
        "real / sampled",
    )
    rows = []
    for row in result["rows"]:
        real_s, sampled_s = row["real_s"], row["sampled_s"]
        rows.append(
            (
                row["cell"],
                f"{sampled_s:.1f} ({row['shards']})",
                f"{row['all_s']:.1f} ({row['all_shards']})",
                "not run" if real_s is None else f"{real_s:.1f} ({row['plans']})",
                f"{row['all_s'] / sampled_s:.1f}",
                "" if real_s is None else f"{real_s / sampled_s:.1f}",
            )
        )
    return markdown.table(head, rows)


EVIDENCE = {"cells_cost": Benchmark(("benchmarks.cells.accuracy", "--cost"), 4.0, {"table": table})}


def report(as_json: bool) -> None:
    """Measures and prints."""
    case = cases.CASES[0]
    result = {"case": case.name, "iterations": ITERATIONS, "rows": [asdict(each) for each in costs(case)]}
    print(json.dumps(result) if as_json else table(result))
