"""A real Prometheus scrapes the real handler, over states that are made faulty: each alert fires for its fault."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Gauge

from bftd.core.model.delays import Delays
from bftd.core.model.domain import Happened, Lease, PoolNode, PoolView, SolverFailed, State
from bftd.core.model.foreign_jobs import ElasticJob, OrphanJob
from bftd.core.model.solvers import FailedSolver
from bftd.ledger.rolling import RollingPeriod
from bftd.service.metrics.counters import Counters
from tests.bftd.builders import trainer
from tests.bftd.http.test_api import Served, serving
from tests.prometheus import watching
from tests.support.ports import free_port
from tools import monitoring
from tools.monitoring_alerts import ALERTS
from tools.monitoring_dashboard import queries

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]
# Told only by what Prometheus itself knows of its targets.
OF_THE_TARGET = {"BftdDown", "BftdAbsent"}
# These exclude each other: a daemon that may not grow is not asked why its nodes are idle.
WHILE_HELD = {
    *("BftdSnapshotStale", "BftdSlurmUnreadable", "BftdNothingGrows", "BftdLedgerNotWritten", "BftdLedgerFull"),
    "BftdDelayBudgetSpent",
}
# Nor does any solver solve in the place of another while none can make a plan.
WHILE_PLANNED = {"BftdSolverReplaced"}
TOKEN = "a-token-for-prometheus"


def faulty(now_s: float, instead: str = "") -> State:
    """Nearly all that can be wrong at once while growing is allowed."""
    nodes = {name: PoolNode(name, "IDLE", True, "is idle") for name in ("n1", "n2", "n3")}
    held = Lease("n3.1", "n3", "1", now_s - 60.0, 600.0, "", asked_back_s=now_s - 30.0, revoked_s=now_s, alarmed=True)
    wants = dataclasses.replace(trainer("1", nodes_max=8), heard_s=now_s)
    silent = dataclasses.replace(trainer("2"), heard_s=now_s - 300.0)
    return State(
        time_s=now_s,
        pool=PoolView(1, now_s, nodes=nodes, wary="few get earmarks"),
        trainers={"1": wants, "2": silent},
        leases={held.id: held},
        quarantined={"n2": now_s + 600.0},
        alarms={"operator": "too much was cancelled"},
        orphan_jobs={"7": OrphanJob(ElasticJob("7", "ann", "", ("n1",)), now_s, named=True)},
        failed_solvers={"auto": FailedSolver("no luck", now_s + 600.0, instead)},
        delays=Delays(recent=((now_s, 1e4),) if instead else ()),
    )


def happen(measured: Counters, state: State) -> None:
    """What goes wrong again and again: late give-backs, solvers that fail, a slow Slurm, a slow host."""
    late = Happened("give_back", "1", "n1", {"duration_s": 20.0})
    measured.stepped(state, state, (), (late, SolverFailed("no luck")), 0.01)
    measured.slurm_called("squeue", "unanswered", 4.0)
    measured.snapshot(4.0, 2.0)
    measured.distrusted("highs")


async def misbehave(served: Served, measured: Counters, ahead_s: list[float]) -> None:
    """Be faulty until cancelled."""
    while True:
        served.service.core = faulty(time.time(), "highs" if ahead_s else "")
        if not ahead_s:
            happen(measured, served.service.core)
        await asyncio.sleep(0.1)


async def watched(tmp_path: Path) -> None:
    address, ahead_s = f"127.0.0.1:{free_port()}", list[float]()
    async with serving(tmp_path, tcp=address, token=TOKEN) as served:
        measured = served.service.meters
        assert isinstance(measured, Counters)
        measured._clock = lambda: time.monotonic() + sum(ahead_s)
        restarted(measured)
        served.service.plugin_fault = "the plug-in is for another Slurm"
        brought = (RollingPeriod(3600, None, 100.0, 20.0, 10.0), RollingPeriod(86400, 0.3, 100.0, 20.0, 10.0))
        served.service.windows = lambda: brought  # type: ignore[method-assign]
        misbehaving = asyncio.create_task(misbehave(served, measured, ahead_s))
        try:
            with watching(tmp_path / "prometheus", monitoring.rules(at_once=True), {}) as prometheus:
                await prometheus.fires("BftdAbsent")
                prometheus.watch({"bftd": f"{address} {TOKEN}"})
                growing = (
                    {alert.name for alert in ALERTS} - OF_THE_TARGET - WHILE_HELD - WHILE_PLANNED - {"BftdPausedLong"}
                )
                await prometheus.fires(*growing)
                assert not prometheus.firing() & (WHILE_HELD | OF_THE_TARGET), prometheus.firing()
                await all_queries_are_understood(prometheus)
                ahead_s.append(400.0)
                full = served.service.ledger.size() | {"full": True}
                served.service.ledger.size = lambda: full  # type: ignore[method-assign]
                served.service._unwritten = "no space"
                await prometheus.fires(*WHILE_HELD, *WHILE_PLANNED)
        finally:
            misbehaving.cancel()


def restarted(measured: Counters) -> None:
    """Let the process seem to be another at each scrape."""
    starts = itertools.count()
    (process,) = (item for item in measured.registry._collector_to_names if not hasattr(item, "_labelnames"))
    measured.registry.unregister(process)
    Gauge("process_start_time_seconds", "-", registry=measured.registry).set_function(lambda: next(starts))


async def all_queries_are_understood(prometheus: Any) -> None:
    def ask(all_: Iterable[str]) -> None:
        for expr in all_:
            prometheus.ask("query", query=expr.replace("$__rate_interval", "5s"))

    await asyncio.to_thread(ask, [*queries(), *(alert.expr for alert in ALERTS)])


def test_every_alert_fires_for_its_fault_and_every_query_is_understood(tmp_path: Path) -> None:
    asyncio.run(watched(tmp_path))


def test_promtool_finds_nothing_wrong_with_rules_and_metrics(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    for action in ("check", "test"):
        file = {"check": "rules.yml", "test": "rules_test.yml"}[action]
        subprocess.run([promtool, action, "rules", file], cwd=monitoring.FOLDER, check=True, capture_output=True)

    async def scraped() -> bytes:
        async with serving(tmp_path) as served:
            served.service.core = faulty(time.time())
            assert isinstance(served.service.meters, Counters)
            happen(served.service.meters, served.service.core)
            async with served._session.get("http://daemon/metrics") as answer:
                return await answer.read()

    text = asyncio.run(scraped())
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
