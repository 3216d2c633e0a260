"""The tuner's plans on Alpa's public search logs, and a cost model's stage times beside a real run.

    python -m benchmarks.crius.alpa_search [--json] [--logs FOLDER] [--seeds N]

A log has the time of every candidate of every cell (a range of layers on a number of GPUs), so the best of the whole
grid is known, and the tuner is given only what it asks for. The times are those of Alpa's cost model: this tests the
rule of the search and says nothing of how well times are estimated. A candidate is a split into dp x tp; a log has one
or two compiled variants of each, of which the fastest that fits counts, and which are counted as `rows`. Of those that
are tried, `samples` are what an estimate of the cell has looked at before: the extremes, and the third if there is one.

Beside the tuner stand the better extreme alone (what a cell is estimated by) and Crius as printed: two samples, then
all splits of the better half, which it counts without the other extreme since it profiles and does not run it. Last, a
walk from data parallelism on, which looks at fewest, and finds no valley at the other end.

The whole plan is the best way through the layers with all GPUs: the sum of stage times and (B - 1) times the slowest.
Each log names one measured time of a whole iteration. Which plan that was is not in it; the best is set against it.
What is missing of that time: the stage times are those of a static cost model and not profiles of a GPU; the gradients'
all-reduce and the optimizer's update once an iteration; transfers between stages; what the runtime adds for each
micro-batch.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from sizing.base.parallel import Parallel
from sizing.cells.tune import middle, tune, undecided
from studies.crius import search_log
from studies.crius.search_log import Grid, LogCell, Replay, best_of

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "sizing" / "alpa-search"
BOUNDS = {"mean_accuracy": 0.96, "worst_accuracy": 0.85, "missed_feasible": 0}
NOISE = (0.02, 0.05, 0.1, 0.2)
RULES = {
    "`bft size split`": (),
    "the paper's (the better extreme's half)": ("as_printed",),
    "the better extreme alone": ("better_extreme",),
    "from data parallelism on": ("from_one_end",),
}
"""The rules by the names of their tables' rows, and where `--json` has each."""
Times = Mapping[LogCell, float]


def better_extreme(grid: Grid) -> tuple[float | None, int]:
    """The best of all-DP and all-TP, and how many were looked at."""
    axis = sorted(grid)
    times = [best_of(grid[split]) for split in {axis[0], axis[-1]}]
    return min(filter(None, times), default=None), len(times)


def as_printed(grid: Grid) -> tuple[float | None, int]:
    """Crius: the half of the better extreme, without a third sample; splits run, the other extreme not among them."""
    axis = sorted(grid)
    low, high = (best_of(grid[split]) for split in (axis[0], axis[-1]))
    if low is None and high is None:
        return None, 0
    at = axis.index(middle(axis))
    half = axis[at:] if low is None or (high is not None and high <= low) else axis[: at + 1]
    return min(filter(None, (best_of(grid[split]) for split in half)), default=None), len(half)


def from_one_end(grid: Grid) -> tuple[float | None, int]:
    """From data parallelism on, until times rise or memory ends: as exact where times fall and rise, with no look at
    the other extreme."""
    best: float | None = None
    tried = 0
    for split in sorted(grid, reverse=True):
        tried += 1
        time_s = best_of(grid[split])
        if best is not None and (time_s is None or time_s > best):
            break
        best = time_s if best is None or time_s is not None else best
    return best, tried


def whole_plan(times: Times, micro_batches: int) -> tuple[float, tuple[LogCell, ...]] | None:
    """The least time of an iteration with all layers and GPUs, and its stages; for each slowest stage the least sum."""
    layers = 1 + max(cell.last_layer for cell in times)
    gpus = max(cell.gpus for cell in times)
    best: tuple[float, tuple[LogCell, ...]] | None = None
    for slowest in sorted(set(times.values())):
        sums: dict[tuple[int, int], tuple[float, tuple[LogCell, ...]]] = {(0, 0): (0.0, ())}
        for at in range(layers):
            for cell, seconds in times.items():
                if cell.first_layer != at or seconds > slowest:
                    continue
                for used in range(gpus - cell.gpus + 1):
                    if (at, used) not in sums:
                        continue
                    before, stages = sums[at, used]
                    key = (cell.last_layer + 1, used + cell.gpus)
                    if key not in sums or before + seconds < sums[key][0]:
                        sums[key] = (before + seconds, (*stages, cell))
        if (layers, gpus) in sums:
            total, stages = sums[layers, gpus]
            step_s = total + (micro_batches - 1) * max(times[cell] for cell in stages)
            if best is None or step_s < best[0]:
                best = (step_s, stages)
    return best


def of_log(path: Path) -> dict[str, Any]:
    """Everything that is said of one log."""
    text = path.read_text()
    replays = search_log.replay(search_log.parse(text, path.name))
    found = re.search(r"microbatches(\d+)", path.stem)
    if not found:
        raise SystemExit(f"{path.name} does not say how many micro-batches there were: name it ...-microbatches32.csv")
    full = {each.cell: each.best_s for each in replays if each.best_s is not None}
    tuned = {each.cell: each.tuned.time_s for each in replays if each.tuned.time_s is not None}
    best, chosen = whole_plan(full, int(found[1])), whole_plan(tuned, int(found[1]))
    assert best is not None
    assert chosen is not None
    measured_s = float(next(iter(_column(text, "measured_e2e_s"))))
    return {
        "log": path.name,
        **summary(replays),
        "as_printed": rule(replays, as_printed),
        "better_extreme": rule(replays, better_extreme),
        "from_one_end": rule(replays, from_one_end),
        "whole_plan": {
            "micro_batches": int(found[1]),
            "full_grid_s": best[0],
            "tuned_s": chosen[0],
            "accuracy": best[0] / chosen[0],
            "stages": [[each.first_layer, each.last_layer, each.gpus] for each in chosen[1]],
        },
        "end_to_end": {
            "estimated_s": best[0],
            "measured_s": measured_s,
            "accuracy": 1 - abs(best[0] - measured_s) / measured_s,
        },
    }


def summary(replays: Sequence[Replay]) -> dict[str, Any]:
    """Accuracy and cost of the tuner on some cells."""
    scores = search_log.accuracies(replays)
    choices = [each.accuracy for each in replays if each.accuracy is not None and len(each.grid) > 2]
    return {
        "cells": len(replays),
        "feasible": len(scores),
        "mean_accuracy": statistics.mean(scores),
        "worst_accuracy": min(scores),
        "missed_feasible": search_log.missed(replays),
        "tried": sum(each.tuned.tried for each in replays),
        "candidates": sum(each.tuned.candidates for each in replays),
        "samples": sum(_samples(each) for each in replays),
        "rows_tried": sum(len(each.grid[split]) for each in replays for split in each.tuned.times),
        "rows": sum(len(variants) for each in replays for variants in each.grid.values()),
        # cells with one or two splits leave nothing to be missed
        "of_three_splits_and_more": {
            "feasible": len(choices),
            "mean": _mean(choices),
            "worst": min(choices, default=1),
        },
    }


def rule(replays: Sequence[Replay], search: Callable[[Grid], tuple[float | None, int]]) -> dict[str, Any]:
    """The same of another rule."""
    scores, tried, missed = [], 0, 0
    for each in replays:
        found, count = search(each.grid)
        tried += count
        if each.best_s is not None:
            missed += found is None
            scores.append(0.0 if found is None else each.best_s / found)
    return {"mean_accuracy": _mean(scores), "worst_accuracy": min(scores), "missed_feasible": missed, "tried": tried}


def under_noise(replays: Sequence[Replay], seeds: int) -> list[dict[str, float]]:
    """Accuracy, by the log's own times, where each measurement is off by up to a share: the logs' times repeat
    exactly, those of a machine do not."""
    found = []
    for share in NOISE:
        scores, full = [], []
        for seed in range(seeds):
            rng = random.Random(seed)
            for each in replays:
                if each.best_s is None:
                    continue
                true = {split: best_of(variants) for split, variants in each.grid.items()}
                seen = {split: time_s and time_s * rng.uniform(1 - share, 1 + share) for split, time_s in true.items()}
                best = tune({split: _always(time_s) for split, time_s in seen.items()}).best
                chosen = None if best is None else true[best]
                scores.append(0.0 if chosen is None else each.best_s / chosen)
                fitting = {split: time_s for split, time_s in seen.items() if time_s is not None}
                full.append(each.best_s / (true[min(fitting, key=fitting.__getitem__)] or 0))
        found.append(
            {
                "share": share,
                "mean_accuracy": _mean(scores),
                "worst_accuracy": min(scores),
                "full_grid_mean": _mean(full),
                "full_grid_worst": min(full),
            }
        )
    return found


def reduction() -> list[dict[str, float]]:
    """How many splits are tried of one stage, also on more GPUs than in the logs, wherever the best of them lies."""
    found = []
    for power in range(1, 11):
        axis = [Parallel(2**at, 2 ** (power - at)) for at in range(power + 1)]
        tries = []
        for best in range(power + 1):
            times = {split: 1.0 + 0.2 * abs(at - best) for at, split in enumerate(axis)}
            tries.append(tune({split: _always(times[split]) for split in axis}).tried)
        found.append(
            {
                "gpus": 2**power,
                "splits": power + 1,
                "tried_least": min(tries),
                "tried_mean": statistics.mean(tries),
                "tried_most": max(tries),
            }
        )
    return found


def rules(result: Mapping[str, Any]) -> str:
    """The rules on all logs, in Markdown."""
    whole = result["all"]
    head = (
        "rule",
        "mean of the full grid's best",
        f"worst of {whole['feasible']} feasible cells",
        "feasible cells called infeasible",
        f"splits tried of {whole['candidates']:,}",
    )
    rows = []
    for name, keys in RULES.items():
        one = whole
        for key in keys:
            one = one[key]
        share = {each: markdown.brief_percent(one[f"{each}_accuracy"]) for each in ("mean", "worst")}
        if not keys:
            share = {each: markdown.bounded(text, one[f"{each}_accuracy"] >= BOUNDS[f"{each}_accuracy"])
                     for each, text in share.items()}  # fmt: skip
        rows.append((name, share["mean"], share["worst"], one["missed_feasible"], f"{one['tried']:,}"))
    return markdown.table(head, rows)


def logs_table(result: Mapping[str, Any]) -> str:
    """The best plan of all stages of each log, in Markdown."""
    head = ("log", "best plan of the grid, s", "of what was tried, s", "measured, s", "accuracy")
    rows = []
    for each in result["logs"]:
        plan, real = each["whole_plan"], each["end_to_end"]
        times = (plan["full_grid_s"], plan["tuned_s"], real["measured_s"])
        rows.append((each["log"], *(f"{time_s:.1f}" for time_s in times), markdown.percent(real["accuracy"])))
    return markdown.table(head, rows)


def noise_table(result: Mapping[str, Any]) -> str:
    """Return the cost of errors of measurements, in Markdown."""
    head = ("measurements off by up to", "mean", "worst cell", "full grid: mean", "worst cell")
    names = ("mean_accuracy", "worst_accuracy", "full_grid_mean", "full_grid_worst")
    return markdown.table(
        head,
        (
            (markdown.percent(row["share"], 0), *(markdown.percent(row[name]) for name in names))
            for row in result["noise"]
        ),
    )


def reduction_table(result: Mapping[str, Any]) -> str:
    """The splits tried of one stage, in Markdown."""
    return markdown.table(
        ("GPUs", "splits", "tried: least", "mean", "most"),
        (
            (row["gpus"], row["splits"], row["tried_least"], f"{row['tried_mean']:.1f}", row["tried_most"])
            for row in result["reduction"]
        ),
    )


def _figures(result: Any) -> Mapping[str, Figure]:
    shares = {
        "noise.mean": result["noise"][2]["mean_accuracy"],
        "noise.worst": result["noise"][2]["worst_accuracy"],
        "end-to-end.mean": result["all"]["end_to_end_mean"],
        "end-to-end.worst": result["all"]["end_to_end_worst"],
    }
    return {name: _exact(value) for name, value in shares.items()}


def _exact(share: float) -> Figure:
    """A share that is the same in each run, but for the last digits of its sums."""
    return Figure(markdown.brief_percent(share), share, (share - 1e-6, share + 1e-6))


EVIDENCE = {
    "alpa_search": Benchmark(
        ("benchmarks.crius.alpa_search",),
        0.1,
        {"rules": rules, "noise": noise_table, "reduction": reduction_table, "logs": logs_table},
        _figures,
    )
}


def main() -> None:
    """Replay all logs and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--logs", type=Path, default=LOGS, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="of the noise")
    asked = parser.parse_args()
    paths = sorted(asked.logs.glob("*.csv"))
    if not paths:
        raise SystemExit(f"no logs in {asked.logs}: name their folder by --logs")
    logs = [of_log(path) for path in paths]
    replays = [each for path in paths for each in search_log.replay(search_log.parse(path.read_text(), path.name))]
    whole = summary(replays)
    end_to_end = [each["end_to_end"]["accuracy"] for each in logs]
    result: dict[str, Any] = {
        "logs": logs,
        "all": {
            **whole,
            "tried_ratio": whole["tried"] / whole["candidates"],
            "as_printed": rule(replays, as_printed),
            "better_extreme": rule(replays, better_extreme),
            "from_one_end": rule(replays, from_one_end),
            "worst_mean_of_a_log": min(each["mean_accuracy"] for each in logs),
            "end_to_end_mean": statistics.mean(end_to_end),
            "end_to_end_worst": min(end_to_end),
        },
        "bounds": BOUNDS,
        "noise": under_noise(replays, asked.seeds),
        "reduction": reduction(),
    }
    print(json.dumps(result, indent=2) if asked.json else EVIDENCE["alpa_search"].markdown(result))


def _always(time_s: float | None) -> Callable[[], float | None]:
    """Return a measurement that always gives this time."""
    return lambda: time_s


def _samples(each: Replay) -> int:
    """Of what was tried, the extremes and the third sample: what an estimate of the cell has looked at before."""
    low, *_, high = [*sorted(each.grid)] * 2
    times = each.tuned.times
    third = {middle(list(each.grid))} if undecided(times[low], times[high]) else set()
    return len({low, high} | third)


def _mean(scores: Sequence[float]) -> float:
    return statistics.mean(scores) if scores else 1.0


def _column(text: str, name: str) -> list[str]:
    head, *lines = text.splitlines()
    at = head.split(",").index(name)
    return [line.split(",")[at] for line in lines]


if __name__ == "__main__":
    main()
