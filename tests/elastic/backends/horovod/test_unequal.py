"""Real Horovod on nodes with different numbers of workers: real agents and workers, and nothing of Slurm."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drivers.local_nodes import LocalDaemon, LocalNodes
from bftd.protocol.reports import ProgressReport, Report, ResizeReport
from elastic.backends import KINDS
from elastic.driver.server import Hub, listen
from elastic.driver.trainer import TrainerDriver
from elastic.link.authentication import new_secret
from tests.elastic.fakes import reports_of, settings_for, until
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.horovod, pytest.mark.torch]
SCRIPT = Path(__file__).parents[2] / "scripts" / "unequal_horovod.py"


def test_two_workers_on_one_node_and_one_on_another_train_though_twice_the_larger_would_be_four(
    tmp_path: Path,
) -> None:
    stop, rows, said = tmp_path / "stop", tmp_path / "steps.jsonl", list[str]()
    settings = replace(
        settings_for(tmp_path, "2-3"), interpreter=sys.executable, argv=(str(SCRIPT), str(stop)), script_dir=tmp_path
    )
    reports: list[Report] = []

    def sizes() -> set[tuple[int, int]]:
        lines = rows.read_text().splitlines() if rows.exists() else []
        return {(row["size"], row["nodes"]) for row in map(json.loads, lines)}

    async def run() -> tuple[int, str]:
        secret, listening = new_secret(), listen()
        nodes = LocalNodes(f"127.0.0.1:{listening.getsockname()[1]}", secret, {"n1": 2, "n2": 1, "n3": 3})
        daemon = LocalDaemon(reports.append)
        trainer = TrainerDriver(settings, said.append, KINDS["horovod"], nodes, daemon)  # type: ignore[arg-type]
        hub = Hub(trainer.connections, secret, listening, transfers=trainer.connections.transfers.accept)
        serving = asyncio.create_task(trainer.serve())
        try:
            trainer.on_leases(daemon.grant("n1", "n2"))
            await until("three ranks train", lambda: (3, 2) in sizes() or serving.done())
            # A node that is larger than both: all of it takes part.
            trainer.on_leases(daemon.grant("n3"))
            await until("six ranks train", lambda: (6, 3) in sizes() or serving.done())
            stop.touch()
            return await asyncio.wait_for(serving, STILL_S)
        finally:
            hub.close()
            trainer.run.cancel()
            await serving
            await trainer.stop()

    assert asyncio.run(run()) == (0, "training is complete"), said
    assert sizes() == {(3, 2), (6, 3)}
    assert '"key": "' not in rows.read_text()
    assert {(report.nodes, report.world_size) for report in reports_of(reports, ProgressReport)} == {(2, 3), (3, 6)}
    assert [(report.from_nodes, report.to_nodes) for report in reports_of(reports, ResizeReport)] == [(2, 3)]
