"""A cluster that is handed on is whole, and one that is not is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_plugin.sandbox import Sandbox, processes
from tests.support.clusters import Clusters

SHAPE = {"nodes": 1, "tuned": True}
SLEEP = "#!/bin/sh\ntouch left\nexec sleep 600\n"


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    lent = Clusters()
    yield lent
    lent.end()


@pytest.mark.cluster
def test_the_next_module_gets_the_same_cluster_without_jobs_files_and_old_logs(clusters: Clusters) -> None:
    with clusters.lend(**SHAPE) as first:
        names = {path.name for path in first.root.iterdir()}
        job = first.client().submit(["-p", "batch", "-D", str(first.root), "-o", "out"], SLEEP)
    with clusters.lend(**SHAPE) as second:
        assert second is first
        assert {path.name for path in second.root.iterdir()} == names
        assert f"JobId={job}" not in (second.root / "log" / "slurmctld.log").read_text()
        assert not second.client().snapshot().jobs
        assert set(second.status().values()) == {"IDLE"}
        client = second.client()
        assert client.submit(["-p", "batch", "-o", "/dev/null"], SLEEP) > job


def drain(cluster: Sandbox) -> None:
    cluster.client().run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")


def make_a_partition(cluster: Sandbox) -> None:
    cluster.client().run("scontrol", "create", "PartitionName=more", "Nodes=n1")


def write_another_lua(cluster: Sandbox) -> None:
    (cluster.root / "job_submit.lua").write_text("-- nothing\n")


def kill_a_slurmd(cluster: Sandbox) -> None:
    (pid,) = (
        found.pid
        for found in processes.of_root(cluster.root)
        if b"-N\0n1\0" in Path(f"/proc/{found.pid}/cmdline").read_bytes()
    )
    os.kill(pid, signal.SIGKILL)


@pytest.mark.cluster
@pytest.mark.parametrize("change", [drain, make_a_partition, write_another_lua, kill_a_slurmd])
def test_a_cluster_that_a_module_has_changed_is_ended_and_the_next_module_gets_another(
    clusters: Clusters, change: Callable[[Sandbox], None]
) -> None:
    with clusters.lend(**SHAPE) as first:
        change(first)
    assert not processes.of_root(first.root)
    assert not first.root.exists()
    with clusters.lend(**SHAPE) as second:
        assert second is not first


@pytest.mark.cluster
def test_two_modules_at_once_get_two_clusters_and_only_the_newest_are_kept(clusters: Clusters) -> None:
    with clusters.lend(**SHAPE) as first, clusters.lend(**SHAPE) as second:
        assert first is not second
    for cpus in (1, 2):
        with clusters.lend(nodes=1, tuned=True, cpus_per_node=cpus):
            pass
    assert not first.root.exists()
    assert not second.root.exists()
