"""The cost of learning curves: regret against curves that are known, and the time until first nodes.

    python -m benchmarks.curves.learning [--json] [--hours H] [--seeds FIRST:LAST] [--pools N,N] [--trainers N,N]
                                        [--objective efficiency|throughput] [--week-hours H] [--data DIR]

The daemon's own core with simulated drivers, polled every few seconds, twice over the same nodes and trainers: *known*,
from their true curves, and *learned*, from what their drivers report by then. Regret is the part of the known run's
outcome that the learned one lacks: in hours of one node where efficiency is planned for, in samples for throughput.

Quiet pools never change. Trainers come within the first five minutes, two to a user where there are more than two, and
have no end. Each true curve is one of the paper's seven networks or Amdahl's law with a serial part of 0 to 50 %, drawn
by the seed. Resizes and warm-ups last as long as measured with Horovod. The busy pool is Summit's week with the paper's
lists of trainers and costs. A rate is told once the trainer had the same number of nodes for ten seconds, as the mean
over them, exactly.

A first node is late while the pool has more nodes than users and a user with an active trainer has none.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import bftd.simulation.trace
from benchmarks.curves.estimates import DATA, LISTS, Knows, Learning, guessing
from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.markdown import percent, table
from benchmarks.paper import replays
from bftd.protocol.registration import Registration
from bftd.simulation.drivers.networks import TABLE_2, TABLE_2_NODES
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.drivers.trainers import read as read_trainers
from bftd.simulation.replay import Options
from bftd.simulation.trace import Change, Trace
from bftd.simulation.trace.errors import TraceError
from milp import interpolate

POLL_S = 5.0
ARRIVE_WITHIN_S = 300.0
SERIAL_MOST = 0.5
WEEK_USERS = 5
# Figures are of seeds that were not looked at while the core was made; it was made with those from 100 on.
SEEDS = (0, 5)
FIRST_S = 3600.0
MOST_REGRET_FIRST, MOST_REGRET_WEEK, MOST_WAIT_S = 0.03, 0.01, 60.0
"""Aims: in the first hour of quiet pools, over Summit's week, and for a first node."""


class Polled(Learning):
    """A learning replay in which the core sees the pool every few seconds, as the daemon does, and who waits is noted.

    `waits_s` has how long each user waited for a first node while the pool had more nodes than users.
    """

    def __init__(
        self, trainers: Sequence[SimTrainer], options: Options, knows: Knows, users: int, until_s: float
    ) -> None:
        super().__init__(trainers, options, knows, guessing(0.0, 0.0, 0))
        self.user_of = {trainer.name: f"u{place % users}" for place, trainer in enumerate(trainers)}
        self.first: dict[str, float] = {}
        self.waits_s: list[float] = []
        self._until_s = until_s
        self._since: dict[str, float] = {}

    def _next(self, change_s: float, now_s: float) -> float:
        soon_s = min(now_s + POLL_S, self.backlog.next_s)
        at_s = super()._next(min(change_s, soon_s), now_s)
        return min(at_s, self._until_s) if now_s < self._until_s else at_s

    def _instant(self, now_s: float, change: Change | None) -> None:
        decided = len(self.account.decided_s)
        super()._instant(now_s, change)
        if len(self.account.decided_s) == decided:
            self.cluster.decide(now_s, [])
            self._note(now_s)
        if now_s <= self._until_s:
            for driver in self.drivers.in_play.values():
                driver.advance(now_s)
            self.first = self.account.earned | {
                driver.spec.name: driver.samples for driver in self.drivers.in_play.values()
            }
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Note who waits for a first node."""
        users = {self.user_of[name.partition("#")[0]] for name in self.drivers.in_play}
        having = {self.user_of[name.partition("#")[0]] for name in self.drivers.holders.values()}
        waiting = users - having if self.cluster.pool_size > len(users) else set()
        for user in self._since.keys() - waiting:
            self.waits_s.append(now_s - self._since.pop(user))
        for user in waiting - self._since.keys():
            self._since[user] = now_s

    def _close(self, end_s: float) -> None:
        super()._close(end_s)
        self.waits_s += [end_s - since_s for since_s in self._since.values()]

    def _registration(self, spec: SimTrainer) -> Registration:
        return replace(super()._registration(spec), user=self.user_of[spec.name.partition("#")[0]])


def drawn(count: int, nodes: int, seed: int) -> list[SimTrainer]:
    """Trainers without end and their true curves."""
    random_ = random.Random(f"{seed}:{count}:{nodes}")
    return [_drawn(place, nodes, random_) for place in range(count)]


def _drawn(place: int, nodes: int, random_: random.Random) -> SimTrainer:
    came_s = random_.uniform(0.0, ARRIVE_WITHIN_S) if place else 0.0
    if random_.random() < 0.5:
        name = random_.choice(list(TABLE_2))
        points = tuple(zip(TABLE_2_NODES, (1000.0 * thousands for thousands in TABLE_2[name]), strict=True))
        most = min(nodes, TABLE_2_NODES[-1])
    else:
        serial, one = random_.uniform(0.0, SERIAL_MOST), 1000.0 * random_.choice(list(TABLE_2.values()))[0]
        name, most = f"Amdahl{100 * serial:.0f}", nodes
        points = tuple((size, one / (serial + (1 - serial) / size)) for size in range(1, nodes + 1))
    curve = ((0, 0.0), *points)
    return SimTrainer(f"J{place}-{name}", 1, most, 1e15, curve, curve, submit_s=came_s)


def quiet(nodes: int, hours: float) -> Trace:
    """A pool that never changes."""
    everywhere = np.arange(nodes, dtype=np.int32)
    names = tuple(f"n{place}" for place in range(nodes))
    return Trace(names, np.zeros(nodes), everywhere, np.ones(nodes, dtype=bool), hours * 3600.0, "quiet")


def outcome(earned: dict[str, float], trainers: Sequence[SimTrainer], objective: str) -> float:
    """Samples, or hours in which one node makes as many of the same trainer."""
    if objective == "throughput":
        return sum(earned.values())
    one_node = {trainer.name: interpolate(trainer.curve, 1) * 3600.0 for trainer in trainers}
    return sum(samples / one_node[name.partition("#")[0]] for name, samples in earned.items())


def compared(trace: Trace, trainers: Sequence[SimTrainer], options: Options, users: int) -> dict[str, float]:
    """Regret over the whole trace and its first hour, and the longest wait for a first node (s)."""
    until_s = min(FIRST_S, trace.duration_s)
    made: dict[str, Any] = defaultdict(dict)
    late: dict[str, float] = {}
    knowing: Knows
    for knowing in ("known", "unknown"):
        replay = Polled(trainers, options, knowing, users, until_s)
        account = replay.through(trace, None)
        made[knowing] = [outcome(each, trainers, options.objective) for each in (account.earned, replay.first)]
        late[knowing] = max(replay.waits_s, default=0.0)
    regret, regret_first = (1.0 - made["unknown"][at] / made["known"][at] for at in (0, 1))
    return {
        "regret": regret,
        "regret_first_hour": regret_first,
        "first_node_s": late["unknown"],
        "first_node_known_s": late["known"],
    }


def _summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Median and spread over the seeds."""
    return {
        name: {
            "median": statistics.median(run[name] for run in runs),
            "least": min(run[name] for run in runs),
            "most": max(run[name] for run in runs),
        }
        for name in runs[0]
    }


def on_quiet_pools(
    pools: Sequence[int], counts: Sequence[int], hours: float, objective: str, seeds: range
) -> list[dict[str, Any]]:
    """Each size of pool with each number of trainers, over the seeds."""
    rows = []
    for nodes in pools:
        for count in counts:
            options = Options(pj_max=count, objective=objective, rescale_model="measured")  # type: ignore[arg-type]
            users = count if count <= 2 else count // 2
            runs = [compared(quiet(nodes, hours), drawn(count, nodes, seed), options, users) for seed in seeds]
            rows.append({"nodes": nodes, "trainers": count, "runs": runs, **_summary(runs)})
    return rows


def on_summit(data: Path, hours: float) -> list[dict[str, Any]]:
    """Summit's week, or its beginning, with the paper's lists of trainers for both objectives."""
    trace = bftd.simulation.trace.read(data / replays.TRACE).select(replays.SUBSET).first(hours)
    rows = []
    for objective in LISTS:
        trainers = read_trainers(data / replays.TRAINERS[objective])
        options = Options(objective=objective)  # type: ignore[arg-type]
        rows.append({"objective": objective, "hours": hours, **compared(trace, trainers, options, WEEK_USERS)})
    return rows


def quiet_pools(found: Mapping[str, Any]) -> str:
    """A row for each size of pool and number of trainers: medians over the seeds, least and most."""
    rows = [
        [
            f"{row['nodes']}, {row['trainers']}",
            _spread(row["regret_first_hour"]) + _missed(row["regret_first_hour"]["median"] > MOST_REGRET_FIRST),
            *([_spread(row["regret"])] if found["hours"] > 1 else []),
            f"{row['first_node_s']['most']:.0f} s" + _missed(row["first_node_s"]["most"] > MOST_WAIT_S),
        ]
        for row in found["quiet"]
    ]
    head = ["nodes, trainers", f"regret in the first hour (bound {percent(MOST_REGRET_FIRST, 0)})"]
    head += [f"in {found['hours']:g} hours"] * (found["hours"] > 1)
    return table([*head, f"longest wait for a first node (bound {MOST_WAIT_S:.0f} s)"], rows)


def summits_week(found: Mapping[str, Any]) -> str:
    """A row for each objective."""
    rows = [
        [
            row["objective"],
            percent(row["regret"]) + _missed(row["regret"] > MOST_REGRET_WEEK),
            f"{row['first_node_s']:.0f} s" + _missed(row["first_node_s"] > MOST_WAIT_S),
        ]
        for row in found["summit"]
    ]
    head = ["planned for", f"regret in {found['summit'][0]['hours']:g} hours (bound {percent(MOST_REGRET_WEEK, 0)})"]
    return table([*head, f"longest wait for a first node (bound {MOST_WAIT_S:.0f} s)"], rows)


def _spread(figure: Mapping[str, float]) -> str:
    return f"{percent(figure['median'])} ({100 * figure['least']:.1f} to {100 * figure['most']:.1f})"


def _missed(missed: bool) -> str:
    return ", missed" if missed else ""


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The regret in the first hour, between the least and the most of the seeds."""
    return {
        f"{row['nodes']}-{row['trainers']}": Figure(percent(one["median"]), one["median"], (one["least"], one["most"]))
        for row in found["quiet"]
        for one in (row["regret_first_hour"],)
    }


_TABLES = {"quiet": quiet_pools, "week": summits_week}
EVIDENCE = {"curves_learning": Benchmark(("benchmarks.curves.learning",), 6.0, _TABLES, _figures)}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--hours", type=float, default=24.0, help="of the quiet pools; 0 leaves them out")
    parser.add_argument("--seeds", default="{}:{}".format(*SEEDS), metavar="FIRST:LAST", help="of the quiet pools")
    parser.add_argument("--pools", default="16,200", metavar="N,N", help="nodes of the quiet pools")
    parser.add_argument("--trainers", default="2,20", metavar="N,N", help="trainers on the quiet pools")
    parser.add_argument("--objective", choices=tuple(LISTS), default="efficiency", help="on the quiet pools")
    parser.add_argument("--week-hours", type=float, default=168.0, help="of Summit's week; 0 leaves it out")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where the Summit trace is")
    asked = parser.parse_args()
    if asked.week_hours and (missing := replays.missing(asked.data)):
        parser.error(f"{asked.data} lacks {', '.join(missing)}: say where the trace is with --data")
    try:
        first, last = map(int, asked.seeds.split(":"))
        pools, counts = ([int(word) for word in each.split(",")] for each in (asked.pools, asked.trainers))
    except ValueError:
        parser.error("--seeds takes FIRST:LAST, --pools and --trainers take N,N")
    if last <= first or min(*pools, *counts, inf) < 1:
        parser.error("--seeds takes FIRST:LAST, the last one left out, and numbers are 1 or more")
    found: dict[str, Any] = {"hours": asked.hours, "objective": asked.objective, "seeds": asked.seeds}
    try:
        seeds = range(first, last)
        found["quiet"] = on_quiet_pools(pools, counts, asked.hours, asked.objective, seeds) if asked.hours else []
        found["summit"] = on_summit(asked.data, asked.week_hours) if asked.week_hours else []
    except TraceError as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for part, table_of in (("quiet", quiet_pools), ("summit", summits_week)):
        if found[part]:
            print(f"{table_of(found)}\n")


if __name__ == "__main__":
    main()
