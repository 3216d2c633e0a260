"""The daemon under `benchmarks.scale.hostile`: the real API, core and ledger, with trainers and leases as asked.

    python -m benchmarks.scale.daemon FOLDER --trainers N --leases N

It prints a line once it serves FOLDER/socket, and on SIGTERM what it has measured. Slurm is left out: a snapshot a
second, in which all pilots run, goes straight to the core. How long the loop keeps anybody waiting is told by its own
selector, between two calls of which it serves nobody, and by a timer. Snapshots are counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.scale.many_drivers import ProcessWatch
from bftd.config.keys import (
    ApiConfig,
    Config,
    DaemonConfig,
    DecideConfig,
    LedgerConfig,
    LimitsConfig,
    SlurmConfig,
)
from bftd.core.model.domain import PoolNode, PoolView
from bftd.core.model.events import Event, Heard, PoolObserved, Registered, Reported
from bftd.daemon.process import SWITCH_S
from bftd.http import api
from bftd.ledger.file import Ledger
from bftd.protocol.lease import Phase
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport
from bftd.protocol.sizes import Sizes
from bftd.service.gc_schedule import Garbage, only_when_called
from bftd.service.service import Service

POLL_S = 1.0
PROBE_S = 0.005


class Watch(selectors.DefaultSelector):
    """A selector that notes how long the loop was away since it asked last, and the processor time of that."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[float, float]] = []
        self.ticking = False
        self._since: tuple[float, float] | None = None

    def select(self, timeout: float | None = None) -> Any:
        """See selectors; a turn of the loop in which a snapshot was taken in is left out."""
        if self._since is not None and not self.ticking:
            self.turns.append((time.perf_counter() - self._since[0], time.thread_time() - self._since[1]))
        self.ticking = False
        found = super().select(timeout)
        self._since = time.perf_counter(), time.thread_time()
        return found


class Site:
    """A cluster on which all nodes are lent: so many trainers of root's, and their leases in equal shares."""

    def __init__(self, folder: Path, trainers: int, leases: int) -> None:
        config = Config(
            slurm=SlurmConfig(submit_rate_per_min=10**6),
            decide=DecideConfig(pj_max=10**4),
            limits=LimitsConfig(trainers_per_user=0),
            api=ApiConfig(str(folder / "socket")),
            ledger=LedgerConfig(str(folder / "ledger")),
            daemon=DaemonConfig(),
        )
        self.service = Service(config, Ledger(folder / "ledger"), lambda job_ids: None)
        self._nodes = [f"n{number}" for number in range(leases)]
        self._version = 1
        self._ids = [f"run-site-{number}" for number in range(trainers)]
        share = leases // trainers
        now_s = time.time()
        requests = [
            Registration(id_, id_, "torchrun", Sizes(share, share), "root", config.slurm.partition) for id_ in self._ids
        ]
        self.service.apply(*(Registered(now_s, request) for request in requests))
        self.tick()
        for phase in ("placed", "working"):
            self._report(phase)
        self.tick()

    def tick(self) -> None:
        """One snapshot, and a sign of life of every driver."""
        now_s, state = time.time(), self.service.state
        on = {lease.node: lease.job_id for lease in state.leases.values() if lease.job_id}
        nodes = {name: PoolNode(name, "ALLOCATED", True, "runs a pilot", pilot=on.get(name)) for name in self._nodes}
        pilots = {job_id: node for node, job_id in on.items()}
        view = PoolView(self._version, now_s, None, nodes, pilots)
        heard: list[Event] = [Heard(now_s, id_) for id_ in self._ids]
        self.service.apply(*heard, PoolObserved(now_s, view))

    def _report(self, phase: Phase) -> None:
        now_s = time.time()
        told: dict[str, list[LeaseReport]] = {}
        for number, lease in enumerate(self.service.state.leases.values()):
            told.setdefault(lease.trainer, []).append(LeaseReport(now_s, lease.id, phase, str(10**6 + number)))
        self.service.apply(*(Reported(now_s, id_, tuple(reports)) for id_, reports in told.items()))


async def serve(folder: Path, trainers: int, leases: int, watch: Watch) -> dict[str, Any]:
    """Serve until SIGTERM; returns what was measured, times in milliseconds."""
    loop = asyncio.get_running_loop()
    site = Site(folder, trainers, leases)
    runner = await api.listen(site.service, site.service.config.api)
    stop, lags_s, ticks_s, garbage = asyncio.Event(), list[float](), list[float](), Garbage()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    async def probe() -> None:
        while not stop.is_set():
            due_s, ticks = time.perf_counter() + PROBE_S, len(ticks_s)
            await asyncio.sleep(PROBE_S)
            if len(ticks_s) == ticks:
                lags_s.append(max(0.0, time.perf_counter() - due_s))

    async def poll() -> None:
        while not stop.is_set():
            await asyncio.sleep(POLL_S)
            begun_s = time.perf_counter()
            site.tick()
            garbage.collect()
            ticks_s.append(time.perf_counter() - begun_s)
            watch.ticking = True

    print(json.dumps({"trainers": trainers, "leases": len(site.service.state.leases)}), flush=True)
    watch.turns.clear()
    tasks = [asyncio.create_task(probe()), asyncio.create_task(poll())]
    await stop.wait()
    turns = sorted(watch.turns)  # what comes is the end: all connections at once
    await asyncio.gather(*tasks)
    site.service.stop()
    await runner.cleanup()
    return {
        "loop_lag_ms": spread(lags_s),
        "turn_ms": {"max": 1e3 * turns[-1][0], "max_cpu": 1e3 * max(cpu for _, cpu in turns), "count": len(turns)},
        "tick_ms": spread(ticks_s),
        "peak_bytes": ProcessWatch(_pid()).sample().peak_bytes,
        "trainers": len(site.service.state.trainers),
    }


def spread(values_s: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(values_s) or [0.0]
    count = len(ordered)
    shown = {"p50": ordered[count // 2], "p99": ordered[min(count - 1, int(0.99 * count))], "max": ordered[-1]}
    return {name: 1e3 * value for name, value in shown.items()} | {"count": count}


def _pid() -> int:
    return int(Path("/proc/self").resolve().name)


def main() -> None:
    """Serve, then print what was measured as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainers", type=int, default=1_000)
    parser.add_argument("--leases", type=int, default=10_000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    sys.setswitchinterval(SWITCH_S)
    only_when_called()
    watch = Watch()
    loop = asyncio.SelectorEventLoop(watch)
    try:
        measured = loop.run_until_complete(serve(options.folder, options.trainers, options.leases, watch))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
    finally:
        loop.close()
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
