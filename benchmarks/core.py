"""The polls that the decision core folds in a second of CPU time: with sentences as the daemon, without as a replay.

    python -m benchmarks.core [--json] [--polls N] [--repeats N] [--plain-replace]

A poll is one `fold`: what all drivers have said since the last poll, and a snapshot of the pool. In every tenth poll
one node in a hundred has changed sides, so that leases end, others are granted and a plan is made; in the others only
progress is new. All is seeded. With --plain-replace the draft of a step copies its objects by `dataclasses.replace`,
alternately with the copying of `bftd.core.model.draft`, which shows what that earns.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import platform
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from bftd.core.model.domain import PoolNode, PoolView, Settings, State
from bftd.core.model.events import Configured, Event, PoolObserved, Registered, Reported
from bftd.core.step import fold
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport, ProgressReport, Report
from bftd.protocol.sizes import Sizes

# Trainers and nodes: a large site of today, and the largest that is measured elsewhere.
SIZES = ((35, 800), (200, 5_000))
CHANGE_EVERY = 10
CHANGED_SHARE = 0.01
# Polls before any is timed: all nodes are lent, and the caches are warm.
WARM_POLLS = 30


@dataclass(frozen=True)
class Case:
    """One way to fold polls."""

    trainers: int
    nodes: int
    explain: bool
    plain_replace: bool


class Drivers:
    """Slurm and the drivers: they place what is granted and end what is revoked before the next poll."""

    def __init__(self, trainers: int, nodes: int) -> None:
        self._random = random.Random(0)
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._idle = set(self._names)
        self._pilots: dict[str, str] = {}
        self._version = 1
        self.time_s = 1000.0
        self.requests = [self._request(number, nodes // trainers) for number in range(trainers)]

    def _request(self, number: int, share: int) -> Registration:
        rate = self._random.uniform(50.0, 500.0)
        curve = tuple((size, rate * size**0.9) for size in (1, 4, 16, 64))
        low, high = self._random.randint(1, 4), self._random.randint(share, 2 * share)
        return Registration(str(number), f"t{number}", "torchrun", Sizes(low, high), "ann", "elastic", curve=curve)

    def poll(self, state: State, number: int) -> list[Event]:
        """What comes together at the next poll of a core in this state."""
        self.time_s += 1.0
        told: dict[str, list[Report]] = {request.id: [] for request in self.requests}
        for lease in state.leases.values():
            if not lease.live:
                self._pilots.pop(lease.job_id or "", None)
                told[lease.trainer].append(LeaseReport(self.time_s, lease.id, "ended"))
            elif lease.job_id is None:
                job_id = f"7{lease.id.rpartition('.')[2]}"
                self._pilots[job_id] = lease.node
                for phase in ("placed", "working"):
                    told[lease.trainer].append(LeaseReport(self.time_s, lease.id, phase, job_id))
        for id_, reports in told.items():
            progress = ProgressReport(self.time_s, number, 8.0 * number, 100.0, state.trainers[id_].sizes.low)
            reports.append(progress)
        if number % CHANGE_EVERY == 0:
            self._idle ^= set(self._random.sample(self._names, max(1, round(CHANGED_SHARE * len(self._names)))))
            self._version += 1
        events: list[Event] = [Reported(self.time_s, id_, tuple(reports)) for id_, reports in told.items()]
        return [*events, PoolObserved(self.time_s, self._view())]

    def _view(self) -> PoolView:
        on = {node: job_id for job_id, node in self._pilots.items()}
        nodes = {
            name: PoolNode(name, "IDLE", True, "is idle", pilot=on.get(name))
            if name in self._idle
            else PoolNode(name, "ALLOCATED", False, "runs a job", wanted=True)
            for name in self._names
        }
        job_ids = frozenset(request.id for request in self.requests)
        return PoolView(self._version, self.time_s, None, nodes, dict(self._pilots), job_ids=job_ids)


def measure(case: Case, polls: int) -> list[float]:
    """CPU seconds of each poll."""
    drivers = Drivers(case.trainers, case.nodes)
    settings = Settings().changed(
        pj_max=case.trainers, trainers_per_user=0, objective="throughput", submit_rate_per_min=1_000_000
    )
    begin: list[Event] = [Configured(drivers.time_s, settings)]
    begin += [Registered(drivers.time_s, request) for request in drivers.requests]
    state, _ = fold(State(), begin)
    taken_s = []
    for number in range(WARM_POLLS + polls):
        events = drivers.poll(state, number)
        started_s = time.process_time()
        state, _ = fold(state, events, explain=case.explain)
        taken_s.append(time.process_time() - started_s)
    return taken_s[WARM_POLLS:]


def cases(plain_too: bool) -> Iterator[Case]:
    """All ways that are measured."""
    for trainers, nodes in SIZES:
        for explain in (True, False):
            for plain in (False, True) if plain_too else (False,):
                yield Case(trainers, nodes, explain, plain)


def run(polls: int, repeats: int, plain_too: bool) -> list[dict[str, Any]]:
    """Measure all cases in turn, as often as asked, so that a busy machine slows none alone."""
    every = list(cases(plain_too))
    taken_s: dict[Case, list[float]] = {case: [] for case in every}
    rates: dict[Case, list[float]] = {case: [] for case in every}
    for _ in range(repeats):
        for case in every:
            gc.collect()
            # what is put in place of the copying has its arguments: the object and the fields that change
            copied = _replaced if case.plain_replace else None
            with mock.patch("bftd.core.model.draft._copied", copied) if copied else mock.patch.dict({}):
                times_s = measure(case, polls)
            taken_s[case] += times_s
            rates[case].append(len(times_s) / sum(times_s))
    return [_row(case, taken_s[case], rates[case]) for case in every]


def _replaced(item: Any, fields: dict[str, Any]) -> Any:
    return dataclasses.replace(item, **fields)


def _row(case: Case, taken_s: list[float], rates: list[float]) -> dict[str, Any]:
    ordered = sorted(taken_s)
    return dataclasses.asdict(case) | {
        "polls": len(taken_s),
        "polls_per_s": statistics.median(rates),
        "slowest_polls_per_s": min(rates),
        "fastest_polls_per_s": max(rates),
        "median_ms": 1e3 * statistics.median(ordered),
        "p99_ms": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
    }


def main() -> None:
    """Print the table, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--polls", type=int, default=200, help="polls timed in each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case")
    parser.add_argument("--plain-replace", action="store_true", help="measure dataclasses.replace beside")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(options.polls, options.repeats, options.plain_replace)
    if options.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=2))
        return
    heads = f"{'trainers x nodes':>18} {'sentences':>9} {'copies by':>9}"
    print(f"{heads} {'polls/s':>8} {'(runs)':>13} {'median':>9} {'p99':>9}")
    for row in rows:
        size = f"{row['trainers']} x {row['nodes']}"
        way = "replace" if row["plain_replace"] else "slots"
        runs = f"{row['slowest_polls_per_s']:.0f}-{row['fastest_polls_per_s']:.0f}"
        said = "yes" if row["explain"] else "no"
        print(
            f"{size:>18} {said:>9} {way:>9} {row['polls_per_s']:8.0f} {runs:>13} "
            f"{row['median_ms']:6.2f} ms {row['p99_ms']:6.2f} ms"
        )


if __name__ == "__main__":
    main()
