"""Stop and go on a real cluster: pilots that are really there leave at once, and not before the hour they come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.api_client import ApiClient
from slurm_plugin.sandbox import Sandbox, processes
from tests.bftd.test_cluster import PATIENCE_S, Driver, start, working
from tests.support.clusters import Clusters
from tests.support.messages import wording
from tests.support.programs import run_bft

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    """Three compute nodes."""
    with clusters.lend(nodes=3, tuned=True) as cluster:
        yield cluster


def bft(root: Path, *words: str) -> str:
    """What the command line of this site prints."""
    done = run_bft(*words, env=os.environ | {"BFTD_SOCKET": str(root / "socket")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def pilots(sandbox: Sandbox) -> list[str]:
    """The nodes that pilots have, as Slurm says."""
    jobs = sandbox.client().snapshot().jobs
    return [node for job in jobs if "elastic" in job.partition and job.state == "RUNNING" for node in job.nodes]


def test_S2_a_release_empties_the_nodes_within_the_bound_survives_a_restart_and_a_resume_grows_again(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    process, client = start(tmp_path, sandbox)
    try:
        driver = Driver(client, sandbox, nodes_max=3)
        driver.until(lambda status: working(status) == 3)
        assert bft(tmp_path, "pause", "--why", "power test", "--release") == (
            wording("http.control_handlers.paused", pauses="everything")
            + "; "
            + wording("cli.control.asked_back", count="3 nodes are", within_s=5)
            + "\n"
        )
        driver.until(lambda _: not pilots(sandbox))
        status = driver.until(lambda status: working(status) == 0)
        assert status["give_back_s"]["count"] == 3
        assert status["give_back_s"]["max"] < 5.0

        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process, client = start(tmp_path, sandbox)
        driver.client = client
        driver.register()
        status = driver.until(lambda status: status["snapshot_age_s"] is not None)
        polls = time.monotonic() + 3.0
        status = driver.until(lambda status: time.monotonic() > polls)
        assert working(status) == 0
        assert [pause["text"] for pause in status["pauses"]] == ["everything is paused by root: power test"]
        assert "everything is paused by root: power test" in bft(tmp_path, "explain", "run-test-1")

        bft(tmp_path, "unpause")
        driver.until(lambda status: working(status) == 3)
        stopped_slurmctld(tmp_path, sandbox, driver, client)
    finally:
        process.kill()
        process.wait()


def stopped_slurmctld(root: Path, sandbox: Sandbox, driver: Driver, client: ApiClient) -> None:
    """A pause acts while slurmctld does not answer, and the driver is told so; its pilots leave as soon as they can."""
    pids = [process.pid for process in processes.of_root(sandbox.root) if process.is_daemon]
    (pid,) = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmctld"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "1 node is asked back" in bft(root, "pause", "--nodes", "n2", "--release", "--why", "new disk")
        path = f"/v1/trainers/run-test-1/leases?epoch={driver.epoch}&version={driver.version}&wait_s=5"
        told = {lease["node"]: lease for lease in client.request("GET", path)["leases"]}
        assert {node: (lease["state"], lease["vacate"]) for node, lease in told.items()} == {
            "n1": ("granted", False),
            "n2": ("revoked", True),
            "n3": ("granted", False),
        }
    finally:
        os.kill(pid, signal.SIGCONT)
    status = driver.until(lambda status: sorted(pilots(sandbox)) == ["n1", "n3"] and working(status) == 2)
    (node,) = [node for node in status["nodes"] if node["name"] == "n2"]
    assert node["lease"] is None
