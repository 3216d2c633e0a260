"""The share of the time that a trainer trains which leaves it to bftd when to save, and its losses with its nodes.

    python -m benchmarks.checkpoints.saves [--mb 20 720] [--ways WAY ...] [--json]

`stalls`: what a save of so many MB stalls the training for, by each way whose library is installed, beside one copy in
memory. `training`: the share of the time that is left to training where a save costs that much, or 0.1 to 12 s, with
the driver's own classes on a simulated clock. `losses`: over weeks of node losses, drawn by fixed seeds, the time in
saves and in steps that are done again, beside that of saves at Young and Daly's interval, of who knows beforehand how
often nodes will be lost. `summit`: the same over Summit's week, for trainers on so many of its idle nodes that take
another one for each that leaves; the recording does not tell which departures were announced, so none is taken to be.
Bounds: 1.3 copies; 97 % of the time; 10 % more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import selectors
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.checkpoints import stalls
from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import percent, spread
from benchmarks.paper import replays
from bftd.simulation import trace
from elastic.backends import KINDS
from elastic.base.timing import UPLOAD_EVERY_S
from elastic.driver.progress.reports import TrainerProgress
from elastic.driver.progress.resize_times import ResizeTimes
from elastic.driver.saving.interval import Saves, interval_s
from elastic.driver.saving.step_barrier import SaveRequests
from elastic.driver.timers import Clockwork
from elastic.link.peer import Peer
from elastic.link.step_barrier import StepBarrier
from elastic.link.wire import Message
from elastic.options.elastic_option import SAVE_SHARE_MOST, ElasticSpec

SHARE_WANTED = 0.97
COPIES_MOST = 1.3
OVER_MOST = 0.10
COSTS_S = (0.1, 0.5, 3.0, 12.0)
LOSS_EVERY_S = (600.0, 3600.0, 14400.0)
NODES = (1, 4, 16, 64)
HOURS_S = 6 * 3600.0
WEEK_S = 7 * 86400.0
_SHARE = ElasticSpec(1, 1).save_share
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "summit"


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: hours pass in as long as their work takes."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now_s = 0.0

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self.now_s


class _Jumping(selectors.SelectSelector):
    """Waits for nothing, and sets the loop's clock forward instead."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.now_s += timeout or 0.0
        return super().select(0)


@dataclass
class Outcome:
    """The outcome of a training: seconds in all, how many saves, and seconds in those and in steps done again."""

    over_s: float
    saves: int = 0
    saving_s: float = 0.0
    again_s: float = 0.0

    @property
    def training(self) -> float:
        """The share of the time that is not spent in saves."""
        return 1.0 - self.saving_s / self.over_s

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def waste_s(self) -> float:
        """The time that saves are to make least."""
        return self.saving_s + self.again_s


class _Worker:
    """A worker's step barrier behind a connection that takes no time."""

    def __init__(self, requests: SaveRequests) -> None:
        self.step_barrier = StepBarrier()
        self.step_barrier.by_clock, self.step_barrier.size = True, 2
        self._requests = requests

    def send(self, message: Message) -> None:
        asyncio.get_running_loop().call_soon(self._heard, message)

    def _heard(self, message: Message) -> None:
        if answer := self.step_barrier.answer(message):
            self._requests.received(cast(Peer, self), answer)


class _Trainer:
    """Two workers in step with each other, and the parts of their driver that have them save."""

    def __init__(self, step_s: float, save_s: float, losses_s: Sequence[float], over_s: float) -> None:
        self._step_s, self._save_s, self._over_s = step_s, save_s, over_s
        self._losses_s = iter([*losses_s, math.inf])
        self._loss_s = next(self._losses_s)
        self._step = self._kept = 0
        self.outcome = Outcome(over_s)
        self.told: list[str] = []
        self._requests = SaveRequests()
        self._progress = TrainerProgress(resize_times=ResizeTimes(saves_at_resize=True), groups=1)
        self._pilot = SimpleNamespace(working=True, workers=self._new_workers())

    def _new_workers(self) -> dict[int, _Worker]:
        return {rank: _Worker(self._requests) for rank in range(2)}

    async def run(self) -> None:
        """Trains until the time is over."""
        spec = ElasticSpec(1, 2)
        run = SimpleNamespace(
            settings=SimpleNamespace(spec=spec),
            save_requests=self._requests,
            progress=self._progress,
            note=self.told.append,
        )
        pilot_manager, loop = SimpleNamespace(all=[self._pilot]), asyncio.get_running_loop()
        clockwork = Clockwork(cast(Any, run), KINDS["torchrun"], cast(Any, pilot_manager), cast(Any, None), loop.time)
        driver = asyncio.ensure_future(clockwork._save())
        try:
            while loop.time() < self._over_s:
                await self._one_step(loop.time)
        finally:
            driver.cancel()

    async def _one_step(self, clock: Callable[[], float]) -> None:
        await asyncio.sleep(self._step_s)
        if self._is_lost(clock()):
            return
        self._step += 1
        requests = [worker.step_barrier.passed(self._step, clock()) for worker in self._pilot.workers.values()]
        if requests[0] is None:
            return
        await asyncio.sleep(self._save_s)
        self.outcome.saves += 1
        self.outcome.saving_s += self._save_s
        if not self._is_lost(clock()):
            self._kept = self._step

    def _is_lost(self, now_s: float) -> bool:
        if now_s < self._loss_s:
            return False
        self._loss_s = next(self._losses_s)
        self.outcome.again_s += (self._step - self._kept) * self._step_s
        self._progress.losses += self._step > self._kept
        self._progress.groups += 1
        self._step = self._kept
        for worker in self._pilot.workers.values():
            self._requests.gone(cast(Peer, worker))
        self._pilot.workers = self._new_workers()
        return True


def simulated(
    save_s: float, *, step_s: float = 1.0, losses_s: Sequence[float] = (), over_s: float = HOURS_S
) -> tuple[Outcome, list[str]]:
    """A training whose saves stall it for `save_s`, and what its driver says of them."""
    loop = SimulatedLoop()
    trainer = _Trainer(step_s, save_s, losses_s, over_s)
    try:
        loop.run_until_complete(trainer.run())
    finally:
        loop.close()
    return trainer.outcome, trainer.told


def replay(every_s: Callable[[float, int], float], save_s: float, losses_s: Sequence[float], over_s: float) -> Outcome:
    """A training that saves every so often, by the time and by how often nodes were lost, and steps all the time."""
    outcome, now_s = Outcome(over_s), 0.0
    for lost, loss_s in enumerate([*losses_s, over_s]):
        while (next_s := now_s + (apart_s := every_s(now_s, lost))) <= loss_s:
            outcome.saves, outcome.saving_s, now_s = outcome.saves + 1, outcome.saving_s + save_s, next_s
        if loss_s < over_s:
            outcome.again_s += min(loss_s - now_s, apart_s - save_s)
        now_s = loss_s
    return outcome


def bftds(save_s: float) -> Callable[[float, int], float]:
    """The driver's interval, of a trainer whose saves take so long."""
    saves = Saves(_SHARE)

    def every_s(now_s: float, lost: int) -> float:
        saves.look(now_s, True, lost + 1, lost, 0.0)
        saves.worth(save_s)
        saves.asked(now_s)
        return saves.interval_s

    return every_s


def steady(every_s: float) -> Callable[[float, int], float]:
    """The same interval all the time."""
    return lambda now_s, lost: every_s


def losses(every_s: float, over_s: float, seed: int) -> list[float]:
    """Times at which nodes are lost, at random and so often in the mean."""
    drawn, times_s = random.Random(seed), [0.0]
    while times_s[-1] < over_s:
        times_s.append(times_s[-1] + drawn.expovariate(1.0 / every_s))
    return times_s[1:-1]


def replayed(save_s: float, loss_every_s: float, over_s: float = WEEK_S, seeds: int = 8) -> dict[str, Any]:
    """The cost of saves and losses to bftd over some weeks, beside the best interval of those who know all beforehand.

    `best` is Young and Daly's; `allowed` is the same where that stays within the share of the time that bftd has.
    """
    best_s = math.sqrt(2.0 * save_s * loss_every_s)
    allowed_s = interval_s(save_s, loss_every_s, SAVE_SHARE_MOST, UPLOAD_EVERY_S)
    bftd, best, allowed = Outcome(0.0), Outcome(0.0), Outcome(0.0)
    for stream in (losses(loss_every_s, over_s, seed) for seed in range(seeds)):
        bftd += replay(bftds(save_s), save_s, stream, over_s)
        best += replay(steady(best_s), save_s, stream, over_s)
        allowed += replay(steady(allowed_s), save_s, stream, over_s)
    return {
        "save_s": save_s,
        "loss_every_s": loss_every_s,
        "waste": bftd.waste_s / bftd.over_s,
        "best_interval_s": best_s,
        "over_best": bftd.waste_s / best.waste_s - 1.0,
        "allowed_interval_s": allowed_s,
        "over_allowed": bftd.waste_s / allowed.waste_s - 1.0,
    }


def summit_losses(recorded: trace.Trace, nodes: int, seed: int) -> list[float]:
    """Times at which one of a trainer's nodes leaves; it has so many, drawn among those that are idle."""
    drawn, idle, mine, times_s = random.Random(seed), set[int | str](), set[int | str](), []
    for change in recorded.changes():
        idle = (idle | set(change.joined)) - set(change.left)
        lost = mine & set(change.left)
        mine -= lost
        if lost:
            times_s.append(change.time_s)
        mine |= set(drawn.sample(sorted(idle - mine), min(nodes - len(mine), len(idle - mine))))
    return times_s


def on_summit(recorded: trace.Trace, nodes: int, costs_s: Sequence[float], seeds: int = 8) -> list[dict[str, Any]]:
    """A row a cost of a save: medians over as many trainers, and their range, each with losses of its own."""
    over_s, rows = recorded.duration_s, []
    streams = [summit_losses(recorded, nodes, seed) for seed in range(seeds)]
    for save_s in costs_s:
        over_best, waste, training = [], [], []
        for stream in streams:
            loss_every_s = over_s / max(1, len(stream))
            best_s = math.sqrt(2.0 * save_s * loss_every_s)
            bftd = replay(bftds(save_s), save_s, stream, over_s)
            best = replay(steady(best_s), save_s, stream, over_s)
            over_best.append(bftd.waste_s / best.waste_s - 1.0)
            waste.append(bftd.waste_s / over_s)
            training.append(bftd.training)
        rows.append(
            {
                "nodes": nodes,
                "save_s": save_s,
                "loss_every_s": over_s / statistics.median(len(stream) for stream in streams),
                "waste": statistics.median(waste),
                "over_best": statistics.median(over_best),
                "over_best_least": min(over_best),
                "over_best_most": max(over_best),
                "over_best_by_trainer": [round(each, 4) for each in over_best],
                "training": min(training),
            }
        )
    return rows


def measure(
    sizes_mb: Sequence[int],
    costs_s: Sequence[float] = COSTS_S,
    seeds: int = 8,
    ways: Sequence[str] = tuple(stalls.WAYS),
) -> dict[str, Any]:
    """All three parts."""
    stall_rows = []
    for mb in sizes_mb:
        for way in ways:
            print(f"{way}, {mb} MB", file=sys.stderr, flush=True)
            if (row := stalls.measure(way, mb * 1_000_000)) is not None:
                stall_rows.append({**row, "copies": row["stall_s"] / row["copy_s"]})
    training = [
        {"of": of, "save_s": save_s, "training": outcome.training, "saves": outcome.saves, "told": told[-1:]}
        for of, save_s in [(f"{row['way']}, {row['mb']} MB", row["stall_s"]) for row in stall_rows]
        + [("a given cost", save_s) for save_s in costs_s]
        for outcome, told in [simulated(save_s)]
    ]
    over_losses = [replayed(save_s, every_s, seeds=seeds) for every_s in LOSS_EVERY_S for save_s in costs_s]
    return {
        "stalls": stall_rows,
        "training": training,
        "losses": over_losses,
        "least training": min(row["training"] for row in training),
        "most copies": max((row["copies"] for row in stall_rows), default=None),
    }


Rows = Sequence[Mapping[str, Any]]


def stalls_table(rows: Rows) -> str:
    """A way of saving a line, a size a column: the stall, and how many times as long as a copy it takes."""
    ways, sizes = dict.fromkeys(row["way"] for row in rows), sorted({row["mb"] for row in rows})
    by_way = {(row["way"], row["mb"]): row for row in rows}
    lines = [["way", *(f"{mb} MB" for mb in sizes), "first save: " + ", ".join(f"{mb} MB" for mb in sizes)]]
    lines.append(["---"] * len(lines[0]))
    for way in ways:
        found = [by_way.get((way, mb)) for mb in sizes]
        firsts = ", ".join("-" if row is None else f"{row['first_s']:.2f} s" for row in found)
        lines.append([f"`{way}`", *("" if row is None else _stall(row) for row in found), firsts])
    return _lines(lines)


def _stall(row: Mapping[str, Any]) -> str:
    copies = [one["stall_s"] / one["copy_s"] for one in row["samples"][1:]]
    missed = ", **missed**" if statistics.median(copies) > COPIES_MOST else ""
    return f"{row['stall_s']:.3f} s, {spread(copies, 'copies', 1)}{missed}"


def losses_table(training: Rows, losses_: Rows) -> str:
    """A cost of a save a line: the time left to training, and what saves and repeated steps cost."""
    every = sorted({row["loss_every_s"] for row in losses_})
    shown = ", ".join(f"{each / 60:.0f} min" for each in every)
    lines = [
        [
            "a save stalls for",
            f"time left to training (bound {SHARE_WANTED:.0%})",
            f"saves and repeated steps, of the time: a loss every {shown}",
            f"more than at Young and Daly's interval (bound {OVER_MOST:.0%})",
        ],
        ["---"] * 4,
    ]
    for one in training:
        if one["of"] == "a given cost":
            rows = [
                row
                for each in every
                for row in losses_
                if (row["loss_every_s"], row["save_s"]) == (each, one["save_s"])
            ]
            left = percent(one["training"]) + (", **missed**" if one["training"] < SHARE_WANTED else "")
            over = ", ".join(_over(row["over_best"]) for row in rows)
            lines.append([f"{one['save_s']:g} s", left, ", ".join(percent(row["waste"]) for row in rows), over])
    return _lines(lines)


def summit_table(rows: Rows) -> str:
    """Nodes a line, a cost of a save a column: more than at Young and Daly's interval, median and range."""
    costs = sorted({row["save_s"] for row in rows})
    lines = [["nodes, a loss every", *(f"{each:g} s" for each in costs), "least time left to training"]]
    lines.append(["---"] * len(lines[0]))
    for nodes in dict.fromkeys(row["nodes"] for row in rows):
        mine = sorted((row for row in rows if row["nodes"] == nodes), key=lambda row: float(row["save_s"]))
        cells = [
            f"{_over(row['over_best'])} ({100 * row['over_best_least']:.0f} to {100 * row['over_best_most']:.0f})"
            for row in mine
        ]
        name = f"{nodes}, {mine[0]['loss_every_s'] / 60:.1f} min"
        lines.append([name, *cells, percent(min(row["training"] for row in mine))])
    return _lines(lines)


def _over(share: float) -> str:
    return percent(round(share, 2) + 0.0, 0) + (", **missed**" if share > OVER_MOST else "")


def _lines(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


_TABLES: Mapping[str, Callable[[Any], str]] = {
    "stalls": lambda result: stalls_table(result["stalls"]),
    "losses": lambda result: losses_table(result["training"], result["losses"]),
    "summit": lambda result: summit_table(result["summit"]) if "summit" in result else "without Summit's week",
}
EVIDENCE = {"saves": Benchmark(("benchmarks.checkpoints.saves",), 6.0, _TABLES)}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints.saves", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mb", nargs="*", type=int, default=[20, 720], help="sizes of states (20 720); 4000 needs 16 GB"
    )
    parser.add_argument("--ways", nargs="*", default=list(stalls.WAYS), help="only these ways of saving")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where the Summit trace is")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    options = parser.parse_args(words)
    found = measure(options.mb, ways=options.ways)
    if missing := replays.missing(options.data):
        print(f"without Summit's week: {', '.join(missing)} not in {options.data}", file=sys.stderr)
    else:
        recorded = trace.read(options.data / replays.TRACE)
        found["summit"] = [row for nodes in NODES for row in on_summit(recorded, nodes, COSTS_S)]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print("\n\n".join(made(found) for made in _TABLES.values()))


if __name__ == "__main__":
    main()
