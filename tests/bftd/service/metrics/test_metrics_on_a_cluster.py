"""Faults that are real, on a private cluster: a real Prometheus scrapes the daemon and its alerts say what is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from slurm_plugin.sandbox import Sandbox, processes
from tests.bftd.test_cluster import Driver, start, working
from tests.bftd.test_pausing_cluster import bft
from tests.prometheus import Prometheus, watching
from tests.support.clusters import Clusters
from tests.support.ports import free_port
from tools import monitoring

pytestmark = [pytest.mark.cluster, pytest.mark.prometheus]
# Sooner than a minute: nobody is to wait for it here.
RULES = monitoring.rules(at_once=True).replace("snapshot_age_seconds > 60", "snapshot_age_seconds > 3")


@pytest.fixture
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    """Two compute nodes."""
    with clusters.lend(nodes=2, tuned=True) as cluster:
        yield cluster


@contextmanager
def stopped(root: Path) -> Iterator[None]:
    """The controller answers nobody for a while."""
    pids = [process.pid for process in processes.of_root(root) if process.is_daemon]
    (controller,) = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmctld"]
    os.kill(controller, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller, signal.SIGCONT)


@contextmanager
def locked(ledger: Path) -> Iterator[None]:
    """Another program writes to the ledger for a while."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_alerts_tell_of_a_pause_a_locked_ledger_an_orphan_job_a_controller_that_hangs_and_a_dead_daemon(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    address = f"127.0.0.1:{free_port()}"
    process, client = start(tmp_path, sandbox, f'timeout_s = 1.0\n[web]\nlisten = "{address}"\n')
    try:
        with watching(tmp_path / "prometheus", RULES, {"bftd": address}) as prometheus:
            driver = Driver(client, sandbox, nodes_max=2)
            driver.until(lambda status: working(status) == 2)
            prometheus.until(lambda: prometheus.value('bftd_trainer_nodes{set="working"}') == 2.0)
            metrics_are_sound(address)
            with locked(tmp_path / "ledger"):
                fires(prometheus, "BftdLedgerNotWritten", "BftdNothingGrows")
            passes(prometheus, "BftdLedgerNotWritten", "BftdNothingGrows")
            give_back(prometheus, driver, tmp_path)
            orphan_job(prometheus, sandbox)
            with stopped(sandbox.root):
                fires(prometheus, "BftdSnapshotStale", "BftdSlurmErrors")
            passes(prometheus, "BftdSnapshotStale")
            process.kill()
            fires(prometheus, "BftdDown")
    finally:
        process.kill()
        process.wait()


def fires(prometheus: Prometheus, *alerts: str) -> None:
    prometheus.until(lambda: prometheus.firing().issuperset(alerts))


def passes(prometheus: Prometheus, *alerts: str) -> None:
    prometheus.until(lambda: prometheus.firing().isdisjoint(alerts))


def metrics_are_sound(address: str) -> None:
    """As promtool judges those of a real daemon."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read()
    promtool = shutil.which("promtool")
    assert promtool is not None
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def give_back(prometheus: Prometheus, driver: Driver, root: Path) -> None:
    """A pause with release: it is told as one, and the nodes that come back are measured."""
    bft(root, "pause", "--why", "a test", "--release")
    driver.until(lambda status: working(status) == 0)
    fires(prometheus, "BftdPausedLong")
    assert "BftdNothingGrows" not in prometheus.firing()
    prometheus.until(lambda: prometheus.value("bftd_give_back_duration_seconds_count") == 2.0)
    assert prometheus.value('bftd_growth_blocked{reason="paused"}') == 1.0


def orphan_job(prometheus: Prometheus, sandbox: Sandbox) -> None:
    """A user's own job in the partition of pilots, while nothing is lent."""
    client = sandbox.client()
    job_id = client.submit(["--partition=elastic", "--nodes=1", "--output=/dev/null"], "#!/bin/sh\nexec sleep 300\n")
    fires(prometheus, "BftdOrphanJobs")
    assert prometheus.value("bftd_orphan_jobs") == prometheus.value("bftd_stray_jobs") == 1.0
    client.cancel([job_id], "KILL")
