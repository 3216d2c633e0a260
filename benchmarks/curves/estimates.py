"""The worth of estimates of trainers' speed against learning it from nothing: a part of Summit's week, replayed.

    python -m benchmarks.curves.estimates [--json] [--hours H] [--nodes LIST] [--pj-max N] [--seeds N]
                                          [--level S] [--shape S ...] [--cells FILE.json] [--data DIR]

The same trainers on the same idle nodes, planned by the daemon's own core three ways: *known*, from their true curves;
*unknown*, from nothing but what was seen of them by then, as bftd does without curve=estimate; and *guessed*, from
their true curves distorted as an estimate's are, until what is seen bends them. The logarithm of the error is normally
distributed: a trainer's rates are all off by one factor (`--level` is the standard deviation), and its scaling by a
power of the number of nodes (`--shape`, each of them tried), but never better than linear, as no estimate is. `--cells`
takes the level from what benchmarks.cells.accuracy has measured. A trainer's rate counts as seen, exactly, once it had
the same number of nodes for ten seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import bftd.simulation.trace
from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.paper import replays
from bftd.core.model.events import Event, Reported
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.registration import Registration
from bftd.protocol.reports import ProgressReport
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.drivers.trainers import read as read_trainers
from bftd.simulation.replay import Options
from bftd.simulation.replay.loop import Replay
from bftd.simulation.replay.result import made_of
from bftd.simulation.trace import Change, Trace
from bftd.simulation.trace.errors import TraceError
from milp import interpolate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "summit"
# What is planned for, and by what it is judged: all samples alike, or each trainer's beside what one node of it makes.
LISTS = {"throughput": "samples", "efficiency": "one_node_hours"}
# Assumed, as no GPU's step was compared yet: rates read off data sheets within a factor of 1.4 of the true ones in two
# cases of three, and the scaling from 1 to 64 nodes within 23 % or 52 %.
LEVEL = 0.35
SHAPES = (0.05, 0.1)
_SEEN_AFTER_S = 10.0

Knows = Literal["unknown", "guessed", "known"]


class Learning(Replay):
    """A replay in which the core learns of a trainer's speed what its driver reports, beside what it is told."""

    def __init__(
        self, trainers: Sequence[SimTrainer], options: Options, knows: Knows, guess: Callable[..., Any]
    ) -> None:
        super().__init__(trainers, options)
        self._knows = knows
        self._guess = guess
        # Of each trainer its number of nodes, since when it has that, and the numbers at which it was seen.
        self._at: dict[str, tuple[int, float, set[int]]] = {}

    def _instant(self, now_s: float, change: Change | None) -> None:
        if self._knows != "known" and (seen := self._seen(now_s)):
            self.cluster.apply(seen)
        super()._instant(now_s, change)

    def _seen(self, now_s: float) -> list[Event]:
        events: list[Event] = []
        for id_, driver in self.drivers.in_play.items():
            nodes, since_s, told = self._at.get(id_, (0, now_s, set()))
            if driver.training != nodes:
                nodes, since_s = driver.training, now_s
            elif nodes and nodes not in told and now_s - since_s >= _SEEN_AFTER_S:
                told.add(nodes)
                report = ProgressReport(now_s, 0, 0.0, driver.spec.rates[nodes], nodes)
                events.append(Reported(now_s, id_, (report,)))
            self._at[id_] = nodes, since_s, told
        return events

    def _registration(self, spec: SimTrainer) -> Registration:
        request = super()._registration(spec)
        if self._knows == "known":
            return request
        estimates = (self._guess(spec.name, request.curve),) if self._knows == "guessed" else ()
        return replace(request, curve=(), estimates=estimates)


def guessing(level: float, shape: float, seed: int) -> Callable[..., CurveEstimate]:
    """What an estimator says whose errors spread so far, always the same of the same trainer."""

    def guess(name: str, points: Sequence[tuple[int, float]]) -> CurveEstimate:
        drawn = random.Random(f"{seed}:{name.partition('#')[0]}")
        factor, power = math.exp(drawn.gauss(0.0, level)), drawn.gauss(0.0, shape)
        rates: list[float] = []
        for nodes, rate in points:
            linear = rates[0] / points[0][0] * nodes if rates else math.inf
            rates.append(max(min(linear, rate * factor * nodes**power), rates[-1] if rates else 0.0))
        return CurveEstimate("", tuple((nodes, rate) for (nodes, _), rate in zip(points, rates, strict=True)))

    return guess


def level_of(cells: Any) -> float:
    """The spread of the errors of estimates that benchmarks.cells.accuracy printed; ValueError where none is."""
    pairs = [(row.get("estimated_s"), row.get("real_s")) for row in cells["rows"]]
    logs = [math.log(estimated / real) for estimated, real in pairs if estimated and real]
    if len(logs) < 2:
        raise ValueError("no two rows with estimated_s and real_s")
    return math.sqrt(statistics.fmean(each**2 for each in logs))


def replayed(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options, knows: Knows, level: float, shape: float, seed: int
) -> dict[str, float]:
    """The figures of one replay."""
    began_s = time.perf_counter()
    replay = Learning(trainers, options, knows, guessing(level, shape, seed))
    account = replay.through(trace, None)
    result = made_of(account, trace, trainers, options, replay.planner.solve_s, began_s)
    one_node = {trainer.name: interpolate(trainer.curve, 1) * 3600.0 for trainer in trainers}
    return {
        "samples": result.outcome_samples,
        "one_node_hours": sum(samples / one_node[name] for name, samples in account.earned.items()),
        "efficiency": result.efficiency,
        "completed": result.trainers_completed,
        "rescale_samples": result.rescale_cost_samples,
        "wall_s": result.wall_s,
    }


def compare(
    trace: Trace,
    trainers: Sequence[SimTrainer],
    options: Options,
    by: str,
    level: float,
    shapes: Sequence[float],
    seeds: int,
) -> dict[str, Any]:
    """All three on one list, the guessed one for each shape and seed, and what that saves of what not knowing costs.

    `by` is the figure that the plans are made for.
    """
    known, unknown = (replayed(trace, trainers, options, knows, 0.0, 0.0, 0) for knows in ("known", "unknown"))
    lost = known[by] - unknown[by]
    guessed = []
    for shape in shapes:
        drawn = [replayed(trace, trainers, options, "guessed", level, shape, seed) for seed in range(seeds)]
        mean = {name: statistics.fmean(each[name] for each in drawn) for name in known}
        saved = (mean[by] - unknown[by]) / lost if lost > 0 else None
        below = 1.0 - mean[by] / known[by]
        guessed.append({"shape": shape, "mean": mean, "draws": drawn, "below_known": below, "saved": saved})
    return {
        "by": by,
        "known": known,
        "unknown": unknown,
        "guessed": guessed,
        "unknown_below_known": lost / known[by],
    }


def table(found: Mapping[str, Any]) -> str:
    """A row for what the planner knows, for each list, in Markdown, of what `--json` prints."""
    head = ("planned for", "speeds are", "samples", "one-node hours", "U", "ended", "lost", "of that saved (draws)")
    rows = []
    for name, row in found["lists"].items():
        known, unknown = row["known"], row["unknown"]
        lines = [("known", known, "", ""), ("unknown", unknown, markdown.percent(row["unknown_below_known"], 2), "")]
        for each in row["guessed"]:
            saved = "nothing to save"
            if each["saved"] is not None:
                draws = ", ".join(markdown.percent(one, 0) for one in _saved(row, each))
                saved = f"{markdown.percent(each['saved'], 0)} ({draws})"
            lost = markdown.percent(each["below_known"], 2)
            lines.append((f"guessed, scaling off by {each['shape']:g}", each["mean"], lost, saved))
        for knows, figures, lost, saved in lines:
            made = (f"{figures['samples']:.4g}", f"{figures['one_node_hours']:.4g}")
            ended = f"{figures['completed']:g}"
            rows.append((name, knows, *made, markdown.percent(figures["efficiency"]), ended, lost, saved))
    return markdown.table(head, rows)


def _saved(row: Mapping[str, Any], guessed: Mapping[str, Any]) -> list[float]:
    """Of each draw of a guess, the share that it saves of what knowing nothing costs."""
    known, unknown = (row[knows][row["by"]] for knows in ("known", "unknown"))
    return [(one[row["by"]] - unknown) / (known - unknown) for one in guessed["draws"]]


def _figures(result: Any) -> Mapping[str, Figure]:
    found = {}
    for name, row in result["lists"].items():
        for each in row["guessed"]:
            if (saved := each["saved"]) is not None:
                draws = _saved(row, each)
                text = markdown.percent(saved, 0)
                found[f"{name}.{each['shape']:g}.saved"] = Figure(text, saved, (min(draws), max(draws)))
    return found


EVIDENCE = {
    "curve_estimates": Benchmark(("benchmarks.curves.estimates", "--hours", "48"), 2.0, {"table": table}, _figures)
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--hours", type=float, default=168.0, help="of the trace's week")
    parser.add_argument("--nodes", default=replays.SUBSET, help="of the trace, as its authors number them")
    parser.add_argument("--pj-max", type=int, default=10, help="trainers at once")
    parser.add_argument("--seeds", type=int, default=2, help="draws of the estimator's errors")
    parser.add_argument("--level", type=float, default=LEVEL, help="of the logarithm of a trainer's rates")
    parser.add_argument("--shape", type=float, nargs="+", default=SHAPES, help="of the power by which scaling is off")
    parser.add_argument(
        "--cells", type=Path, metavar="FILE", help="what python -m benchmarks.cells.accuracy --json printed"
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where the Summit trace is")
    asked = parser.parse_args()
    if missing := replays.missing(asked.data):
        parser.error(f"{asked.data} lacks {', '.join(missing)}: say where the trace is with --data")
    level = asked.level
    if asked.cells is not None:
        try:
            level = level_of(json.loads(asked.cells.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            parser.error(f"--cells {asked.cells}: {error}")
    if asked.seeds < 1 or asked.pj_max < 1:
        parser.error("--seeds and --pj-max must be 1 or more")
    try:
        trace = bftd.simulation.trace.read(asked.data / replays.TRACE).select(asked.nodes).first(asked.hours)
    except TraceError as error:
        parser.error(str(error))
    found: dict[str, Any] = {
        "hours": asked.hours,
        "nodes": asked.nodes,
        "pj_max": asked.pj_max,
        "level": level,
        "shapes": list(asked.shape),
        "seeds": asked.seeds,
        "lists": {},
    }
    for name, by in LISTS.items():
        trainers = read_trainers(asked.data / replays.TRAINERS[name])
        options = Options(pj_max=asked.pj_max, objective="efficiency" if name == "efficiency" else "throughput")
        found["lists"][name] = compare(trace, trainers, options, by, level, asked.shape, asked.seeds)
    print(json.dumps(found) if asked.json else table(found))


if __name__ == "__main__":
    main()
