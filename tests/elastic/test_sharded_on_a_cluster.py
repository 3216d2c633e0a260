"""A trainer with a sharded model on a real cluster: saved by some nodes, resumed by others."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bftd.protocol.reports import CrashReport, SuspendReport
from tests.elastic.cluster import EVERY, SCRIPTS, TrainerJob

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("elastic.store.versions") is None,
        reason="the driver keeps no checkpoint versions yet",
    ),
]


def alone(folder: Path, steps: int) -> list[float]:
    """The losses of the same training by one worker, outside bftd."""
    folder.mkdir()
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    argv = [sys.executable, str(SCRIPTS / "count_fsdp.py"), str(steps), "0", str(EVERY)]
    subprocess.run(argv, env=environ, cwd=folder, check=True, timeout=300, capture_output=True)
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_a_sharded_model_is_suspended_on_two_nodes_and_resumed_on_three_without_losing_a_step(
    trainer: TrainerJob, tmp_path: Path
) -> None:
    path = trainer.folder / "shards"
    path.mkdir(mode=0o700)
    trainer.submit("count_fsdp.py", 1_000_000, 0.03, EVERY, backend="torchrun", spec=f"1-4,state={path}")
    trainer.daemon.grant("n1", "n2")
    trainer.trains_on(2)
    trainer.daemon.revoke("n1", "n2")
    [suspended] = trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.wait("all given back", lambda: trainer.state("n1") == trainer.state("n2") == "ended")
    assert suspended.step == trainer.rows[-1]["step"]
    trainer.daemon.grant("n2", "n3", "n4")
    trainer.trains_on(3)
    trainer.cancel()
    trainer.ended()
    rows = trainer.rows
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert trainer.daemon.of(CrashReport) == []
    assert len(list(path.rglob(".metadata"))) <= 2
    losses = alone(tmp_path / "alone", len(rows))
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
