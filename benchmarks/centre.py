"""The daemon's service beside a stand-in of slurmctld at a centre's size, over simulated hours.

    python -m benchmarks.centre [--nodes N ...] [--hours H] [--quick] [--json]

Jobs arrive, start and end, arrays of a thousand tasks among them; where no idle node is left, Slurm preempts pilots.
Drivers place what they are lent, report, and end what is asked back. Slurmctld restarts: for some polls it does not
answer, then all nodes are UNKNOWN. What reads Slurm, the service with its loop, and the ledger are the real ones; time
is simulated, and goes on by what the daemon would wait. Processor times are the daemon's, less the stand-in's.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.centre_slurm import PILOTS, Controller
from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import percent
from bftd.config.keys import Config, DecideConfig, LimitsConfig, SlurmConfig
from bftd.core.model.domain import Action, LeaseChanged, State
from bftd.core.model.events import Event, Registered, Reported, Tick
from bftd.daemon.process import SWITCH_S, next_delay_s
from bftd.ledger.file import Ledger
from bftd.protocol.lease import LeaseState
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport, ProgressReport, Report
from bftd.protocol.sizes import Sizes
from bftd.service.gc_schedule import Garbage, only_when_called
from bftd.service.instrumentation import Meters
from bftd.service.service import Service
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import SlurmError

NODES = (5_000, 10_000)
TRAINERS = 200
# What waits, by nodes of the cluster.
WAITING = {10_000: 50_000}
HOURS = 24.0
QUICK_S = 150.0
TICK_S, LARGE_TICK_S, HELD_S, LENT_LEAST = 0.5, 1.5, 0.05, 0.9
_BEAT_S = 0.005
_SAMPLES_MOST = 2_000  # ticks of a run that tells each of them
# Polls after all was lent at once until that is over for the daemon, too; no site lends so many in one step later on.
_SETTLED_POLLS = 15
_PLACED_S, _WORKS_S, _PROGRESS_S = 1.0, 8.0, 10.0


class Client(SlurmClient):
    """What reads Slurm, with a stand-in in place of its commands."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.spent_s = 0.0

    def run(self, command: str, *arguments: str, **_: Any) -> CommandResult:
        """Ask the stand-in, whose time is kept apart."""
        begun_s = time.thread_time()
        out = self._controller.answer(command, arguments)
        self.spent_s += time.thread_time() - begun_s
        return CommandResult(1, "", "slurmctld is being restarted") if out is None else CommandResult(0, out, "")


class Lost(Meters):
    """Counts leases that are revoked for no job: their node is unfit, by the last snapshot, and has their pilot."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.count = 0

    def stepped(
        self, before: State, after: State, events: Sequence[Event], actions: Sequence[Action], took_s: float
    ) -> None:
        """See one step."""
        for action in actions:
            if isinstance(action, LeaseChanged) and action.kind == "revoked":
                node = after.pool.nodes.get(action.lease.node)
                unfit = node is None or not (node.in_pool or node.wanted)
                runs = self._controller.pilots.get(action.lease.node, ("",))[0] == action.lease.job_id
                self.count += unfit and runs


class Loop:
    """How long the loop is held: by what runs in it (processor), and how late it beats while another thread judges."""

    def __init__(self) -> None:
        self.held_s: list[float] = []
        self.late_s: list[float] = []
        self._watched = False
        self._last_s = 0.0

    def hold(self, function: Any, *arguments: Any) -> Any:
        """Run something in the loop."""
        begun_s = time.thread_time()
        try:
            return function(*arguments)
        finally:
            self.held_s.append(time.thread_time() - begun_s)

    async def beat(self) -> None:
        """Beat for ever."""
        while True:
            await asyncio.sleep(_BEAT_S)
            self._note()

    def watch(self, watched: bool) -> None:
        """Begin or end to count."""
        if not watched:
            self._note()
        self._watched, self._last_s = watched, time.perf_counter()

    def _note(self) -> None:
        now_s = time.perf_counter()
        if self._watched:
            self.late_s.append(max(0.0, now_s - self._last_s - _BEAT_S))
        self._last_s = now_s


class Drivers:
    """Two hundred drivers that do as they are told."""

    def __init__(self, controller: Controller, trainers: int, rng: random.Random) -> None:
        self._controller = controller
        self._rng = rng
        self._working: set[str] = set()
        self._job_of: dict[str, str] = {}
        most = len(controller.names)
        self.requests = [self._request(number, most) for number in range(trainers)]

    def _request(self, number: int, most: int) -> Registration:
        rate = self._rng.uniform(50.0, 500.0)
        curve = tuple((size, rate * size**0.9) for size in (1, 4, 16, 64, 256))
        return Registration(
            f"run-{number}", f"t{number}", "torchrun", Sizes(1, most), f"u{number}", PILOTS, curve=curve
        )

    def reports(self, state: State, now_s: float) -> dict[str, list[Report]]:
        """What each driver says by now."""
        told: dict[str, list[Report]] = defaultdict(list)
        controller, seen = self._controller, set()
        for lease in state.leases.values():
            seen.add(lease.id)
            job_id = self._job_of.get(lease.id)
            phases: list[LeaseState] = []
            if job_id is None:
                if not lease.live:
                    phases = ["ended"]
                elif now_s - lease.granted_s >= _PLACED_S:
                    job_id = controller.start_pilot(lease.node, state.trainers[lease.trainer].user, lease.trainer)
                    phases = ["refused" if job_id is None else "placed"]
                    if job_id is not None:
                        self._job_of[lease.id] = job_id
            elif controller.pilots.get(lease.node, ("",))[0] != job_id:
                phases = ["leaving", "ended"] if lease.live else ["ended"]
            elif not lease.live:
                controller.end_pilot(lease.node)
                phases = ["ended"]
            elif lease.id not in self._working and now_s - lease.granted_s >= _WORKS_S:
                self._working.add(lease.id)
                phases = ["working"]
            told[lease.trainer] += [LeaseReport(now_s, lease.id, phase, job_id) for phase in phases]
        for gone in self._job_of.keys() - seen:
            del self._job_of[gone]
            self._working.discard(gone)
        counts: dict[str, int] = defaultdict(int)
        for lease in state.leases.values():
            counts[lease.trainer] += lease.id in self._working
        for number, request in enumerate(self.requests):
            if counts[request.id] and int(now_s + number) % int(_PROGRESS_S) == 0:
                count, step = counts[request.id], int(now_s) % 10**6
                told[request.id].append(ProgressReport(now_s, step, 8.0 * step, 100.0 * count**0.9, count))
        return {id_: reports for id_, reports in told.items() if reports}


async def centre(nodes: int, waiting: int, trainers: int, lasts_s: float, seed: int = 1) -> dict[str, Any]:
    """Run the service for `lasts_s` simulated seconds after all that is idle has been lent once."""
    rng, clock = random.Random(seed), [1_700_000_000.0]
    controller = Controller(nodes, waiting, rng, clock[0])
    client, drivers, loop_, lost, garbage = (
        Client(controller),
        Drivers(controller, trainers, rng),
        Loop(),
        Lost(controller),
        Garbage(),
    )
    config = dataclasses.replace(
        Config(),
        decide=DecideConfig(pj_max=trainers),
        limits=LimitsConfig(trainers_per_user=0),
    )
    # all is lent at first, then pilots are placed as fast as a site has it by default
    at_first = dataclasses.replace(config, slurm=SlurmConfig(submit_rate_per_min=4 * nodes))
    with tempfile.TemporaryDirectory(prefix="bft-centre-") as folder, ThreadPoolExecutor(1) as reader:
        ledger = Ledger(Path(folder) / "ledger.sqlite")
        service = Service(at_first, ledger, controller.cancel, now=lambda: clock[0])
        service.meters = lost
        for request in drivers.requests:
            service.apply(Registered(clock[0], request))
        beat = asyncio.create_task(loop_.beat())
        loop = asyncio.get_running_loop()
        ticks_s: list[float] = []
        delays_s: list[float] = []
        idle_s = lent_s = leases = 0.0
        warm, settled, began_s, told_s = True, 0, clock[0], clock[0]
        while warm or clock[0] - began_s < lasts_s:
            spent_s, begun_s = client.spent_s, time.process_time()
            loop_.watch(True)
            try:
                snapshot = await loop.run_in_executor(reader, client.snapshot)
            except SlurmError:
                loop_.hold(service.apply, Tick(clock[0]))
            else:
                snapshot = controller.dated(snapshot, clock[0])
                judge = loop_.hold(service.observe_later, snapshot)
                loop_.hold(await loop.run_in_executor(reader, judge))
                del judge, snapshot
            own_s = time.process_time() - begun_s - (client.spent_s - spent_s)
            loop_.watch(False)
            said = drivers.reports(service.core, clock[0])
            begun_s = time.process_time()
            loop_.hold(garbage.collect)
            for id_, reports in said.items():
                loop_.hold(service.apply, Reported(clock[0], id_, tuple(reports)))
            ticks_s.append(own_s + time.process_time() - begun_s)
            delay_s = next_delay_s(service.poll_s, 0.0, 0, own_s)
            idle, lent = controller.idle_and_lent()
            if warm:
                settled = settled + 1 if lent >= 0.98 * idle else 0
                if clock[0] - began_s > 600.0 or settled > _SETTLED_POLLS:
                    warm, began_s, told_s = False, clock[0], clock[0]
                    service.configure(config)
                    loop_.held_s, loop_.late_s, lost.count = [], [], 0
                    ticks_s, delays_s = [], []
            else:
                delays_s.append(delay_s)
                idle_s, lent_s, leases = (
                    idle_s + delay_s * idle,
                    lent_s + delay_s * lent,
                    max(leases, len(service.core.leases)),
                )
            clock[0] += delay_s
            controller.advance(clock[0], works=not warm)
            if clock[0] - told_s >= 600.0:
                told_s = clock[0]
                print(
                    f"{nodes} nodes: {(told_s - began_s) / 3600:.2f} h, {len(ticks_s)} ticks",
                    file=sys.stderr,
                    flush=True,
                )
        beat.cancel()
        ledger.close()
    ordered, held = sorted(ticks_s), sorted(loop_.held_s)
    return {
        "nodes": nodes,
        "waiting": len(controller.waiting),
        "trainers": trainers,
        "leases_most": leases,
        "simulated_s": clock[0] - began_s,
        "ticks": len(ticks_s),
        "samples_s": [round(each, 3) for each in ticks_s] if len(ticks_s) <= _SAMPLES_MOST else [],
        "tick_median_s": statistics.median(ordered),
        "tick_p99_s": ordered[int(0.99 * (len(ordered) - 1))],
        "tick_most_s": ordered[-1],
        "every_median_s": statistics.median(delays_s),
        "every_most_s": max(delays_s),
        "loop_held_p99_s": held[int(0.99 * (len(held) - 1))],
        "loop_held_most_s": held[-1],
        "loop_late_most_wall_s": max(loop_.late_s),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "lent_share": lent_s / idle_s,
        "starts": controller.started,
        "pilots_preempted": controller.preempted,
        "restarts": controller.restarts,
        "leases_lost_for_no_job": lost.count,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A column for each size of the cluster, in Markdown."""
    told = [_cells(row) for row in rows]
    lines = ["| " + " | ".join(["what", *(name for name, _ in told)]) + " |", "| --- " * (len(told) + 1) + "|"]
    for what in told[0][1]:
        lines.append("| " + " | ".join([what, *(cells[what] for _, cells in told)]) + " |")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    tick_s, held_s, lost = row["tick_median_s"], row["loop_held_p99_s"], row["leases_lost_for_no_job"]
    most_s = TICK_S if row["nodes"] <= min(NODES) else LARGE_TICK_S
    return f"{row['nodes']:,} nodes, {row['waiting']:,} waiting jobs", {
        "simulated time, starts, preempted pilots, restarts of slurmctld": (
            f"{row['simulated_s']:.0f} s, {row['starts']:,}, {row['pilots_preempted']:,}, {row['restarts']}"
        ),
        "leases, most": f"{row['leases_most']:,}",
        "a tick: median, most": _bounded(f"{tick_s:.2f} s, {row['tick_most_s']:.2f} s", f"{most_s} s", tick_s > most_s),
        "the loop is held: p99, most": _bounded(
            f"{held_s:.3f} s, {row['loop_held_most_s']:.2f} s", f"{HELD_S} s", held_s > HELD_S
        ),
        "between two polls: median, most": f"{row['every_median_s']:.1f} s, {row['every_most_s']:.1f} s",
        "lent, of idle node-seconds": _bounded(
            percent(row["lent_share"]), percent(LENT_LEAST, 0), row["lent_share"] < LENT_LEAST
        ),
        "leases lost for no job": _bounded(str(lost), "0", lost > 0),
        "memory": f"{row['rss_bytes'] / 1e6:.0f} MB",
    }


def _bounded(text: str, bound: str, missed: bool) -> str:
    return f"{text} (bound {bound}{', **missed**' if missed else ''})"


EVIDENCE = {"centre": Benchmark(("benchmarks.centre", "--quick"), 5.0, {"table": table})}


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.centre", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="sizes of the cluster")
    parser.add_argument("--waiting", type=int, help="jobs that wait (default: as many as nodes, of 10,000 five times)")
    parser.add_argument("--trainers", type=int, default=TRAINERS)
    parser.add_argument("--hours", type=float, default=HOURS, help="simulated hours of each")
    parser.add_argument("--quick", action="store_true", help="two and a half minutes of the smallest size")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    sys.setswitchinterval(SWITCH_S)
    only_when_called()
    sizes = [min(options.nodes)] if options.quick else options.nodes
    lasts_s = QUICK_S if options.quick else options.hours * 3600.0
    rows = []
    for nodes in sizes:
        waiting = options.waiting or WAITING.get(nodes, nodes)
        rows.append(asyncio.run(centre(nodes, waiting, options.trainers, lasts_s)))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(table(rows))


if __name__ == "__main__":
    main()
