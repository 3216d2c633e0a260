"""Earmarks on a real cluster whose backfill scheduler works every 30 s: Slurm finds idle nodes when it looks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.sandbox import Sandbox
from tests.bftd.test_cluster import PATIENCE_S, Driver, start, working
from tests.support.messages import says

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Four compute nodes, and a scheduler as slow as Slurm's own defaults make it."""
    slow = "SchedulerParameters=bf_interval=30\nKillWait=2"
    with Sandbox(nodes=4, service_nodes=1, tuned=False, extra_conf=slow) as cluster:
        yield cluster


def submit(sandbox: Sandbox, nodes: int, minutes: int) -> str:
    """A regular job that would run longer than its test."""
    command = ["sbatch", "--parsable", f"-N{nodes}", f"-t{minutes}", "--wrap", "sleep 600", "-o", "/dev/null"]
    done = subprocess.run(command, env=sandbox.env(), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.strip()


def state(sandbox: Sandbox, job_id: str) -> str:
    return next(job.state for job in sandbox.client().snapshot().jobs if job.id == job_id)


def test_a_job_that_only_backfill_starts_finds_idle_nodes_and_slurm_preempts_nobody(
    tmp_path: Path, sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    first = submit(sandbox, nodes=2, minutes=60)
    process, client = start(tmp_path, sandbox)
    try:
        driver = Driver(client, sandbox, nodes_max=2)
        driver.until(lambda status: state(sandbox, first) == "RUNNING" and working(status) == 2)
        blocked = submit(sandbox, nodes=3, minutes=60)
        wanted = submit(sandbox, nodes=1, minutes=10)  # ends before the blocked one can start
        driver.until(lambda status: working(status) == 1)
        assert state(sandbox, wanted) == "PENDING", "its node is idle before Slurm asks for it"
        driver.until(lambda status: state(sandbox, wanted) == "RUNNING" and not status["earmarks"])
        assert state(sandbox, blocked) == "PENDING"
        assert working(client.status()) == 1, "the other pilot stays"
        delays = client.status()["delays"]
        assert (delays["starts"], delays["unknown"]) == (1, 0), "a pilot has left for its start"
        told = [event["data"] for event in client.events(0, 1000, 0.0) if event["kind"] == "regular_start"]
        assert [(start["job"], start["nodes"]) for start in told] == [(wanted, 1)]
    finally:
        process.kill()
        process.wait()
    log = (sandbox.root / "log" / "slurmctld.log").read_text()
    assert not re.findall(r".*preempted JobId.*", log)
    said = capfd.readouterr().err
    assert says(said, "service.earmark_log.begun", job=wanted)
    assert says(said, "service.earmark_log.over", job=wanted, ENDS="it has started")
