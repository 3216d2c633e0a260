"""A pilot and regular jobs on one node, each with a part of it, on a real cluster with the real daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.read.types import Job
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.submission.shared_nodes import NodePart, Sharing
from slurm_plugin.submission.submission import PilotLauncher, PilotRequest, Placed, Refused
from tests.bftd.test_cluster import Driver, start, working
from tests.support.clusters import Clusters

pytestmark = pytest.mark.cluster
PART = NodePart(1, 1000 * 2**20)
SLEEP = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    """Two nodes of two CPUs, of which jobs have parts."""
    with clusters.lend(nodes=2, cpus_per_node=2, shared=True, tuned=True) as cluster:
        yield cluster


class Parts(PilotLauncher):
    """Asks for a part of each node."""

    def place(self, request: PilotRequest, *rest: Any) -> Placed | Refused:
        return super().place(replace(request, part=PART), *rest)


def submit(sandbox: Sandbox, node: str, cpus: int, memory_mb: int = 500) -> str:
    asks = ["--partition=batch", f"--nodelist={node}", "-n1", f"-c{cpus}", f"--mem={memory_mb}M", "--time=5"]
    return sandbox.client().submit([*asks, "--output=/dev/null"], SLEEP)


def job(sandbox: Sandbox, job_id: str) -> Job:
    return next(one for one in sandbox.client().snapshot().jobs if one.id == job_id)


def runs(sandbox: Sandbox, job_id: str) -> bool:
    return job(sandbox, job_id).state == "RUNNING"


def test_a_regular_job_starts_beside_a_pilot_and_a_third_one_gets_the_pilots_part(
    tmp_path: Path, sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Sharing(sandbox.client()).against("n1", "elastic", PART) == ""
    process, client = start(tmp_path, sandbox)
    try:
        driver = Driver(client, sandbox, nodes_max=2)
        driver.launcher = Parts(sandbox.client(), driver.launcher.rules)
        driver.until(lambda status: working(status) == 2)
        pilots = dict(driver.jobs)
        [on_n1] = [job_id for lease, job_id in pilots.items() if lease.startswith("n1.")]
        beside = submit(sandbox, "n1", cpus=1)
        driver.until(lambda _: runs(sandbox, beside))
        for _ in range(6):  # some polls
            driver.act()
        assert driver.jobs == pilots, "the pilot beside it stays"
        assert job(sandbox, on_n1).state == "RUNNING"
        shown = {node["name"]: node for node in client.status()["nodes"]}
        assert shown["n1"]["lease_state"] == "working"

        third = submit(sandbox, "n1", cpus=1)
        driver.until(lambda status: runs(sandbox, third) and working(status) == 1)
        assert runs(sandbox, beside)
        assert list(driver.jobs.values()) == [job_id for job_id in pilots.values() if job_id != on_n1]
        for _ in range(6):
            driver.act()
        assert len(driver.jobs) == 1, "a node with regular jobs is not idle"

        sandbox.client().cancel([third])
        for _ in range(6):
            driver.act()
        assert len(driver.jobs) == 1, "nor one of which a part is free"
        sandbox.client().cancel([beside])
        status = driver.until(lambda status: working(status) == 2)
        assert not [text for text in status["decisions"] if "overdue" in text["text"]]
    finally:
        process.kill()
        process.wait()
    said = capfd.readouterr().err
    assert not re.search("overdue|alarm|fault", said), said
