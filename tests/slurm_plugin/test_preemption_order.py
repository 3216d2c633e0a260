"""The pilots that Slurm preempts first: those of the lower tier, and of one tier the oldest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.sandbox import Sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

ONE = "MaxTime=60 DefaultTime=1 MaxNodes=1 PreemptMode=CANCEL State=UP"
TIERS = f"PartitionName=first Nodes=n[1-2] PriorityTier=2 {ONE}\nPartitionName=last Nodes=n[3-4] PriorityTier=3 {ONE}"


@pytest.fixture(scope="module")
def client() -> Iterator[SlurmClient]:
    """A cluster whose nodes are in two more elastic partitions, the first nodes in that of the lower tier."""
    with Sandbox(nodes=4, extra_conf=TIERS) as cluster:
        yield cluster.client(20.0)


def left(client: SlurmClient, pilots: list[tuple[str, str]]) -> set[str]:
    """Start pilots one after another, each in a partition on a node, then a regular job on two nodes: those it has."""
    idle = {"n1", "n2", "n3", "n4"}
    until("idle nodes", lambda: idle <= {n.name for n in client.snapshot().nodes.values() if n.state == "IDLE"})
    for partition, node in pilots:
        words = ["--no-shell", "--immediate=5", f"--partition={partition}", f"--nodelist={node}", "--time=5"]
        assert client.run("salloc", *words).code == 0
    id_ = client.submit(["--partition=batch", "--nodes=2", "--output=/dev/null", "--time=3"], "#!/bin/sh\nsleep 100\n")

    def nodes() -> set[str]:
        job = client.job(id_)
        return set(job.nodes) if job is not None and job.state == "RUNNING" else set()

    until("the job runs", lambda: bool(nodes()))
    found = nodes()
    client.cancel([job.id for job in client.snapshot().jobs], signal="KILL")
    until("no job", lambda: not client.snapshot().jobs)
    return found


def test_the_oldest_pilots_of_a_partition_leave_first_wherever_they_are(client: SlurmClient) -> None:
    assert left(client, [("elastic", name) for name in ("n4", "n2", "n1", "n3")]) == {"n2", "n4"}


def test_pilots_of_a_lower_tier_leave_first_however_young_they_are(client: SlurmClient) -> None:
    assert left(client, [("last", "n3"), ("last", "n4"), ("first", "n2"), ("first", "n1")]) == {"n1", "n2"}
