"""The daemon on a real cluster, with a driver that speaks the wire API and places real pilots."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bftd.api_client import ApiClient
from bftd.base.errors import DaemonUnreachable
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.submission.submission import PilotLauncher, PilotRequest, Placed
from tests.support.clusters import Clusters
from tests.support.messages import says
from tests.support.programs import run_bft
from tests.support.waiting import until, written

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
# No command takes so long, however busy the machine is.
PATIENCE_S = 240.0


class Driver:
    """A trainer's driver without training: it places pilots and gives them back."""

    def __init__(self, client: ApiClient, sandbox: Sandbox, nodes_max: int, id_: str = "run-test-1") -> None:
        self.id = id_
        self.client = client
        self.logs = written(sandbox.root / "log")
        self.launcher = PilotLauncher(sandbox.client(), Rules(min_window_s=20.0, looked_s=time.time()))
        self.request = {
            "id": id_, "name": "train-a", "backend": "horovod", "nodes_min": 1, "nodes_max": nodes_max,
            "partition": "elastic", "user": "root", "held": [],
        }  # fmt: skip
        self.jobs: dict[str, str] = {}
        self.register()

    def register(self) -> None:
        """Come, or come back with the leases that are held."""
        held = [{"id": id_, "node": id_.rpartition(".")[0], "job_id": job_id} for id_, job_id in self.jobs.items()]
        answer = self.client.request("POST", "/v1/trainers", self.request | {"held": held})
        self.epoch, self.version = answer["epoch"], answer["version"]
        self.leases = answer["leases"]

    def act(self) -> None:
        """One long poll, and all that it asks for."""
        path = f"/v1/trainers/{self.id}/leases?epoch={self.epoch}&version={self.version}&wait_s=0.5"
        answer = self.client.request("GET", path)
        self.version, self.leases = answer["version"], answer["leases"]
        self.launcher.rules = Rules(answer["min_window_s"], answer["looked_s"])
        for lease in self.leases:
            if lease["state"] == "granted" and lease["id"] not in self.jobs:
                self._place(lease)
            elif lease["state"] == "revoked":
                job_id = self.jobs.pop(lease["id"], None)
                if job_id is not None:
                    self.launcher.withdraw(job_id)
                self._report(lease["id"], "ended", job_id)

    def _place(self, lease: dict[str, Any]) -> None:
        request = PilotRequest(
            lease["node"], "elastic", lease["limit_s"], "bft-pilot", f"bft {self.id} {lease['id']}", lease["gres"]
        )
        outcome = self.launcher.place(request)
        if isinstance(outcome, Placed):
            self.jobs[lease["id"]] = outcome.job_id
            self._report(lease["id"], "placed", outcome.job_id)
            self._report(lease["id"], "working", outcome.job_id)
        else:
            self._report(lease["id"], "refused", None, outcome.reason)

    def _report(self, lease: str, state: str, job_id: str | None, reason: str = "") -> None:
        event = {"op": "lease", "at_s": time.time(), "id": lease, "state": state, "job_id": job_id, "reason": reason}
        self.client.request("POST", f"/v1/trainers/{self.id}/report", {"epoch": self.epoch, "events": [event]})

    def until(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Act until the status is as wanted."""

        def acted() -> dict[str, Any] | None:
            self.act()
            status = self.client.status()
            return status if reached(status) else None

        def moved() -> object:
            return self.jobs, [(lease["id"], lease["state"]) for lease in self.leases], self.logs()

        found = until("the wanted status", acted, moved, self.client.status)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    """Three compute nodes."""
    with clusters.lend(nodes=3, tuned=True) as cluster:
        yield cluster


def start(root: Path, sandbox: Sandbox, more: str = "", **env: str) -> tuple[subprocess.Popen[bytes], ApiClient]:
    """A daemon that answers: its socket is there before it does. `more` goes into its configuration below [slurm]."""
    config = root / "bftd.toml"
    config.write_text(
        f'[slurm]\nconf = "{sandbox.conf}"\npoll_s = 0.5\n{more}[api]\nsocket = "{root}/socket"\n'
        f'[ledger]\npath = "{root}/ledger"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "bftd.daemon.process", "--config", str(config)],
        env=sandbox.env() | {"PYTHONPATH": str(ROOT)} | env,
    )
    client = ApiClient(str(root / "socket"))

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(DaemonUnreachable):
            client.status()
            return True
        return False

    until("the daemon answers", answers, lambda: (root / "socket").exists())
    return process, client


def working(status: dict[str, Any]) -> int:
    """Nodes on which a pilot works that Slurm shows."""
    return sum(min(trainer["working"], trainer["observed"]) for trainer in status["trainers"])


def test_idle_nodes_are_lent_given_to_a_regular_job_and_lent_again_across_a_restart(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    process, client = start(tmp_path, sandbox)
    try:
        driver = Driver(client, sandbox, nodes_max=3)
        status = driver.until(lambda status: working(status) == 3)
        assert {node["lease_state"] for node in status["nodes"]} == {"working"}

        script = "#!/bin/sh\nexec sleep 300\n"
        job_id = sandbox.client().submit(["--partition=batch", "--nodes=2", "--output=/dev/null"], script)

        def runs(_: dict[str, Any]) -> bool:
            job = sandbox.client().job(job_id)
            return job is not None and job.state == "RUNNING"

        driver.until(runs)

        def settled(status: dict[str, Any]) -> bool:
            # Slurm may preempt another node in the moment in which pilots leave those that they were asked for.
            job = sandbox.client().job(job_id)
            lent = {node["name"] for node in status["nodes"] if node["lease_state"] == "working"}
            apart = job is not None and lent.isdisjoint(job.nodes)
            return apart and working(status) == 1 and bool(status["trainers"][0]["requested"] == 1)

        status = driver.until(settled)
        texts = [decision["text"] for decision in status["decisions"]]
        assert any(
            "gives back" in text or says(text, "core.sentences.to_a_job", to=f"job {job_id}") for text in texts
        ), texts

        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process, client = start(tmp_path, sandbox)
        driver.client = client
        before = dict(driver.jobs)
        driver.register()
        driver.until(lambda status: working(status) == 1)
        assert driver.jobs == before, "a restart of the daemon cost a pilot"

        sandbox.client().cancel([job_id])
        status = driver.until(lambda status: working(status) == 3)
        assert 0 < status["training_node_seconds"] <= status["used_node_seconds"] <= status["pool_node_seconds"]
        client.request("POST", "/v1/trainers/run-test-1/finish", {"epoch": driver.epoch, "exit_code": 0, "reason": ""})

        # the driver is gone and has left its pilots: the daemon cancels them
        def pilots() -> list[str]:
            return [job.id for job in sandbox.client().snapshot().jobs if "elastic" in job.partition]

        until("no pilot is left", lambda: not pilots(), pilots)
    finally:
        process.kill()
        process.wait()
        jobs = sandbox.client().snapshot().jobs  # of the next test's cluster none may be left
        sandbox.client().cancel([job.id for job in jobs if "batch" in job.partition], signal="KILL")


def test_regression_with_gurobi_s_licence_server_away_nothing_was_lent_and_all_was_well(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    pytest.importorskip("gurobipy")
    licence = tmp_path / "gurobi.lic"
    licence.write_text("TOKENSERVER=127.0.0.1\nPORT=1\n")
    more = '[decide]\nsolver = "gurobi"\n'
    process, client = start(tmp_path, sandbox, more, GRB_LICENSE_FILE=str(licence))
    try:
        driver = Driver(client, sandbox, nodes_max=3)
        status = driver.until(lambda status: working(status) == 3)
        assert [alarm["kind"] for alarm in status["alarms"]] == ["solver"]
        env = sandbox.env() | {"BFTD_SOCKET": str(tmp_path / "socket")}
        checked = run_bft("status", "--check", "--json", env=env)
        assert checked.returncode == 1, checked.stdout
        assert "gurobi" in checked.stdout

        client.tune(solver="exact")
        assert driver.until(lambda status: not status["alarms"])
        client.request("POST", "/v1/trainers/run-test-1/finish", {"epoch": driver.epoch, "exit_code": 0, "reason": ""})
        until("no pilot", lambda: not any("elastic" in job.partition for job in sandbox.client().snapshot().jobs))
    finally:
        process.kill()
        process.wait()


def test_nodes_are_shown_as_json(sandbox: Sandbox) -> None:
    import json

    shown = run_bft("nodes", "--json", env=sandbox.env() | {"BFTD_CONFIG": ""})
    assert shown.returncode == 0, shown.stderr
    assert {node["name"] for node in json.loads(shown.stdout)["nodes"]} == {"n1", "n2", "n3", "svc1"}


def test_regression_a_second_trainer_had_no_node_as_long_as_the_pool_was_quiet(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    process, client = start(tmp_path, sandbox)
    try:
        first = Driver(client, sandbox, nodes_max=3)
        first.until(lambda status: working(status) == 3)
        second = Driver(client, sandbox, nodes_max=3, id_="run-test-2")

        def both_work(status: dict[str, Any]) -> bool:
            second.act()
            return all(item["working"] for item in status["trainers"])

        first.until(both_work)
    finally:
        process.kill()
        process.wait()
