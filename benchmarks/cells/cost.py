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
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.cells import accuracy, cases
from benchmarks.cells.cases import Case, Plan
from sizing.cells.cell import Cell, Stage
from sizing.cells.profiles.profile import profile
from sizing.cells.required import micro_batches_of, shard_of, splits_of, wanted
from sizing.cells.shards import StageShard
from sizing.model.config import parse

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


def report(as_json: bool) -> None:
    """Measures and prints."""
    found = costs(cases.CASES[0])
    if as_json:
        print(json.dumps({"case": cases.CASES[0].name, "rows": [asdict(each) for each in found]}, indent=2))
        return
    print(f"{cases.CASES[0].name}, {ITERATIONS} iterations a real run; rank-seconds with all start-up\n")
    print("| cell | sampled shards | all splits | real runs of the same plans | all / sampled | real / sampled |")
    print("|---|---|---|---|---|---|")
    for each in found:
        real = "not run" if each.real_s is None else f"{each.real_s:.0f} ({each.plans})"
        gain = "" if each.real_s is None else f"{each.real_s / each.sampled_s:.2f}"
        print(
            f"| {each.cell} | {each.sampled_s:.0f} ({each.shards}) | {each.all_s:.0f} ({each.all_shards}) | {real} "
            f"| {each.all_s / each.sampled_s:.2f} | {gain} |"
        )
