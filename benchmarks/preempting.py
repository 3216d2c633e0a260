"""The share that is lent while regular jobs preempt pilots all the time: a simulated Slurm, the real pool and core.

    python -m benchmarks.preempting [--json] [--nodes N] [--starts-per-s R] [--seconds S]

Every regular job preempts one pilot, as a main scheduler does that works at each submission: of a job that is submitted
in the second before a snapshot, the snapshot shows with a given chance that it still waits, planned on the node of the
pilot that leaves. It counts on an idle node beside that one. All is seeded, and time is simulated.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured, percent
from bftd.config.keys import PoolConfig
from bftd.core.model.domain import Settings, State
from bftd.core.model.events import Configured, Event, Heard, PoolObserved, Registered, Reported
from bftd.core.step import fold
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport
from bftd.protocol.sizes import Sizes
from slurm_plugin.read.types import Job, Node, Snapshot

PARTITION = "elastic"
TRAINERS = 6
RUNS_S = 60.0
# The part of a second for which a job waits that the main scheduler preempts for: 0.3-0.5 s on a real cluster.
WAITS_S = 0.5
WARM_S = 30
LENT_LEAST = 0.9
NODE = Node("", "IDLE", frozenset(), ("batch", PARTITION), (), "", {}, 4, 2**30, "")
JOB = Job("", "ann", ("batch",), "PENDING", "job", (), (), None, 0.0, 3600.0, "Resources", 2, "", "", 1, "")


@dataclass
class Result:
    """Idle node-seconds, and those of them that were lent."""

    idle: int = 0
    lent: int = 0

    @property
    def share(self) -> float:
        """The part of idle node-seconds that was lent."""
        return self.lent / max(1, self.idle)


class Site:
    """Slurm, its regular jobs and the drivers. A driver that is a `liar` reports every 2 s that Slurm asks it to go."""

    def __init__(self, nodes: int, starts_per_s: float, liar: bool = False) -> None:
        self.result = Result()
        self.state = State()
        self._names = [f"n{number}" for number in range(nodes)]
        self._starts_per_s, self._liar = starts_per_s, liar
        self._random = random.Random(1)
        self._memory = PoolMemory()
        self._config = PoolConfig()
        self._pilots: dict[str, str] = {}
        self._jobs: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._last = 1000
        self._second = 0
        self._ids = [str(number) for number in range(1, TRAINERS + 1)]
        curve = tuple((size, 100.0 * size**0.95) for size in (1, 4, 16, 64, 256))
        wide = Sizes(1, nodes)
        settings = Settings().changed(trainers_per_user=0, submit_rate_per_min=10**6)
        drivers = [Registration(id_, id_, "torchrun", wide, f"u{id_}", PARTITION, curve=curve) for id_ in self._ids]
        self._fold(Configured(0.0, settings), *(Registered(0.0, driver) for driver in drivers))

    def run(self, seconds: int) -> Result:
        """What came of so many seconds, after some to warm up."""
        for _ in range(seconds + WARM_S):
            self.second()
        return self.result

    def second(self) -> None:
        """A second: jobs end and come, drivers tell, and a snapshot is read."""
        self._second += 1
        now_s = 1000.0 + self._second
        self._jobs = {id_: (end_s, on) for id_, (end_s, on) in self._jobs.items() if end_s > now_s}
        told: dict[str, list[LeaseReport]] = {id_: [] for id_ in self._ids}
        self._place(told, now_s)
        waiting = self._come(told, now_s)
        if self._liar and self._second % 2 == 0:
            mine = [
                lease for lease in self.state.leases.values() if lease.live and lease.trainer == "1" and lease.job_id
            ]
            told["1"] += [LeaseReport(now_s, lease.id, "leaving", lease.job_id) for lease in mine[:1]]
        reports = (Reported(now_s, id_, tuple(said)) if said else Heard(now_s, id_) for id_, said in told.items())
        self._fold(*reports)
        busy = {name: id_ for id_, (_, on) in self._jobs.items() for name in on if id_ not in waiting}
        leased = {lease.node: lease.job_id for lease in self.state.leases.values()}
        snapshot = Snapshot(now_s, self._nodes(busy), self._shown(waiting, now_s), ())
        self._memory, view = observe(self._memory, snapshot, self._config, Harvest.of(PARTITION), leased, {})
        self._fold(PoolObserved(now_s, view))
        if self._second > WARM_S:
            lent = {lease.node for lease in self.state.leases.values() if lease.live}
            idle = [name for name in self._names if name not in busy]
            self.result.idle += len(idle)
            self.result.lent += sum(name in lent for name in idle)

    def _fold(self, *events: Event) -> None:
        self.state, _ = fold(self.state, events, explain=False)

    def _place(self, told: dict[str, list[LeaseReport]], now_s: float) -> None:
        """Drivers place what they were lent and end what was asked back."""
        taken = {name for _, on in self._jobs.values() for name in on}
        for lease in self.state.leases.values():
            if not lease.live:
                self._pilots.pop(lease.job_id or "", None)
                told[lease.trainer].append(LeaseReport(now_s, lease.id, "ended", lease.job_id))
            elif lease.job_id is None and lease.node in taken:
                told[lease.trainer].append(LeaseReport(now_s, lease.id, "refused"))
            elif lease.job_id is None:
                self._last += 1
                self._pilots[str(self._last)] = lease.node
                for phase in ("placed", "working"):
                    told[lease.trainer].append(LeaseReport(now_s, lease.id, phase, str(self._last)))

    def _come(self, told: dict[str, list[LeaseReport]], now_s: float) -> set[str]:
        """Jobs come that each preempt a pilot and take an idle node; returns those that the snapshot shows waiting."""
        waiting: set[str] = set()
        due = self._starts_per_s
        while due > 0.0 and self._random.random() < due:
            due -= 1.0
            taken = {name for _, on in self._jobs.values() for name in on} | set(self._pilots.values())
            free = [name for name in self._names if name not in taken][:1]
            live = [lease for lease in self.state.leases.values() if lease.live and lease.job_id in self._pilots]
            if not live:
                break
            lease = self._random.choice(live)
            del self._pilots[lease.job_id or ""]
            told[lease.trainer].append(LeaseReport(now_s, lease.id, "leaving", lease.job_id))
            self._last += 1
            self._jobs[str(self._last)] = (now_s + RUNS_S, (lease.node, *free))
            if self._random.random() < WAITS_S:
                waiting.add(str(self._last))
        return waiting

    def _nodes(self, busy: dict[str, str]) -> dict[str, Node]:
        pilots = set(self._pilots.values())
        used = dict.fromkeys((*busy, *pilots), "ALLOCATED")
        return {name: replace(NODE, name=name, state=used.get(name, "IDLE")) for name in self._names}

    def _shown(self, waiting: set[str], now_s: float) -> tuple[Job, ...]:
        users = {lease.job_id: f"u{lease.trainer}" for lease in self.state.leases.values()}
        plain = replace(JOB, partition=(PARTITION,), state="RUNNING", node_count=1)
        pilots = (replace(plain, id=id_, nodes=(name,), user=users.get(id_, "")) for id_, name in self._pilots.items())
        jobs = (
            # of the nodes that it counts on, the plan of a job that preempts names not all
            replace(JOB, id=id_, start_s=now_s, submit_s=now_s - 1.0, sched_nodes=on[:1])
            if id_ in waiting
            else replace(JOB, id=id_, state="RUNNING", nodes=on, start_s=end_s - RUNS_S)
            for id_, (end_s, on) in self._jobs.items()
        )
        return (*pilots, *jobs)


def table(result: Any) -> str:
    """The rows in Markdown."""
    return measured(
        Measured(
            f"idle node-seconds lent, {row['starts_per_s']:g} preempting starts a second on {row['nodes']:,} nodes",
            percent(row["lent_share"]),
            percent(LENT_LEAST, 0),
            row["lent_share"] < LENT_LEAST,
        )
        for row in result["cases"]
    )


EVIDENCE = {"preempting": Benchmark(("benchmarks.preempting",), 1.0, {"table": table})}


def main() -> None:
    """Print what was lent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--nodes", type=int, help="of one run [300, then 5000]")
    parser.add_argument("--starts-per-s", type=float, help="of one run [1, then 5]")
    parser.add_argument("--seconds", type=int, default=120, help="simulated [%(default)s]")
    args = parser.parse_args()
    cases = [(300, 1.0), (5000, 5.0)]
    if args.nodes or args.starts_per_s:
        cases = [(args.nodes or 300, args.starts_per_s or 1.0)]
    rows: list[dict[str, Any]] = []
    for nodes, rate in cases:
        found = Site(nodes, rate).run(args.seconds)
        rows.append({"nodes": nodes, "starts_per_s": rate, "lent_share": found.share})
    result = {"seconds": args.seconds, "cases": rows}
    print(json.dumps(result) if args.json else table(result))


if __name__ == "__main__":
    main()
