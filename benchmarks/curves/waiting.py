"""The price of favouring trainers that wait: outcome and waiting with and without it, on Summit's week.

    python -m benchmarks.curves.waiting [--hours H] [--data DIR] [--json]

The paper's lists of trainers, each planned for its objective with the resize costs measured with Horovod. Of the
trainers that a plan is made for (pj_max 10), the mean number without nodes is told.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import bftd.simulation.trace
from benchmarks.curves.estimates import DATA
from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.markdown import table
from benchmarks.paper import replays
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.drivers.trainers import read as read_trainers
from bftd.simulation.replay import Options
from bftd.simulation.replay.loop import Replay
from bftd.simulation.trace import Change, Trace

Planned = Literal["throughput", "efficiency"]
MOST_LOST = 0.01
_SEVEN = "1,001 of seven networks"
CASES: tuple[tuple[str, Planned], ...] = (
    ("hpo", "efficiency"),
    ("hpo", "throughput"),
    ("efficiency", "efficiency"),
    ("throughput", "throughput"),
)


class Waiting(Replay):
    """A replay that adds up for how long trainers with a place have no nodes."""

    def __init__(self, trainers: tuple[SimTrainer, ...], options: Options, *, favour: bool) -> None:
        super().__init__(trainers, options)
        state = self.cluster.state
        if not favour:
            self.cluster.state = replace(state, settings=state.settings.changed(first_node_within_s=0.0))
        self.waited_s = 0.0
        self._waiting, self._at_s = 0, 0.0

    def _instant(self, now_s: float, change: Change | None) -> None:
        self.waited_s += self._waiting * (now_s - self._at_s)
        super()._instant(now_s, change)
        self._at_s = now_s
        self._waiting = len(self.drivers.in_play) - len(set(self.drivers.holders.values()))


def compared(trace: Trace, trainers: tuple[SimTrainer, ...], objective: Planned) -> dict[str, Any]:
    """Return the outcome with the rule over that without it, and the mean number of trainers that wait each way.

    The outcome is in samples, or in node-seconds of one node where efficiency is planned for.
    """
    one_node = {item.name: dict(item.curve).get(1, item.curve[1][1] / item.curve[1][0]) for item in trainers}
    made: list[float] = []
    waiting: list[float] = []
    for favour in (False, True):
        replay = Waiting(trainers, Options(objective=objective, rescale_model="measured"), favour=favour)
        earned = replay.through(trace, None).earned
        efficiency = objective == "efficiency"
        made.append(sum(value / (one_node[name] if efficiency else 1.0) for name, value in earned.items()))
        waiting.append(replay.waited_s / trace.duration_s)
    return {"outcome": made[1] / made[0] - 1.0, "waiting": waiting}


_NAMES = {"hpo": "one user's search, 1,000 trials", "efficiency": _SEVEN, "throughput": _SEVEN}


def waits(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each case."""
    rows = []
    for one in found:
        missed = ", missed" if one["outcome"] < -MOST_LOST else ""
        before, after = (f"{value:.2f}" for value in one["waiting"])
        rows.append(
            [_NAMES[one["trainers"]], one["objective"], f"{100 * one['outcome']:+.2f} %{missed}", before, after]
        )
    return table(["trainers", "planned for", "outcome", "wait without", "wait with it"], rows)


def _figures(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Figure]:
    """The change of each outcome; a replay has no chance in it."""
    return {
        f"{one['trainers']}-{one['objective']}": Figure(f"{100 * one['outcome']:+.2f} %", one["outcome"], _near(one))
        for one in found
    }


def _near(one: Mapping[str, Any]) -> tuple[float, float]:
    return one["outcome"] - 1e-4, one["outcome"] + 1e-4


EVIDENCE = {"curves_waiting": Benchmark(("benchmarks.curves.waiting",), 2.0, {"waits": waits}, _figures)}


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=168.0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trace = bftd.simulation.trace.read(options.data / replays.TRACE).select(replays.SUBSET).first(options.hours)
    found = []
    for name, objective in CASES:
        trainers = tuple(read_trainers(options.data / replays.TRAINERS[name]))
        found.append(rounded({"trainers": name, "objective": objective, **compared(trace, trainers, objective)}))
    print(json.dumps(found, indent=2) if options.json else waits(found))


if __name__ == "__main__":
    main()
