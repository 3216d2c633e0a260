"""The inventory of a real Slurm, and that Slurm starts a job where a placement says it could."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftd.cli.size.shared import inventory
from sizing.choice.place import Placement, PlacementRequest, place, trial
from sizing.inventory.file import parse, text_of
from sizing.inventory.gpus import GIB
from sizing.inventory.inventory import Inventory, from_slurm
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.sandbox import Sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

SHARED = "PartitionName=shared Nodes=n[1-4] MaxTime=60 MaxNodes=2 State=UP OverSubscribe=NO"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Two nodes with four A100 each and two with two of a type that nobody knows."""
    with Sandbox(nodes=4, gpus={"a100": 4, "turbo": 2}, tuned=True) as cluster:
        answer = cluster.client().run("scontrol", "create", *SHARED.split())
        assert answer.code == 0, answer.complaint
        yield cluster


def read(client: SlurmClient) -> Inventory:
    return from_slurm(client.nodes_with_gpus_used(), client.partitions(), without={"elastic", "bft-driver"})


def test_two_types_two_partitions_and_what_a_job_leaves_idle(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sandbox.client()
    found = read(client)
    assert [(offer.partition, offer.exclusive, offer.max_nodes) for offer in found.offers] == [
        ("batch", True, None),
        ("shared", False, 2),
    ]
    (group,) = found.offers[1].groups
    assert (group.nodes, group.gpus, group.gres_type, group.cpus) == (("n1", "n2"), 4, "a100", 4)
    assert group.idle == {"n1": 4, "n2": 4}
    assert found.unknown == ("turbo",)
    assert parse(text_of(found)) == found
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, sandbox.env()[name])
    assert inventory.found() == found  # bftd's partitions are left out by its configuration

    script = "#!/bin/sh\nsleep 60\n"
    job = client.submit(["-p", "shared", "-w", "n1", "--gres=gpu:a100:3", "-n1", "--mem=10", "-o/dev/null"], script)
    try:
        until("the job runs", lambda: (at := client.job(job)) is not None and at.state == "RUNNING")
        busy = read(client)
        assert busy.offers[1].groups[0].idle == {"n1": 1, "n2": 4}
        # where nodes are not shared, what is left of one is nobody's
        assert busy.offers[0].groups[0].idle == {"n1": 0, "n2": 4}
        wanted = PlacementRequest(5, GIB, partition="shared", cpus=1, memory_bytes=0)
        there = place([wanted], busy)
        assert there is not None
        assert there.nodes == {"n2": 4, "n1": 1}
        assert all(
            not isinstance(answer, Placement)
            for answer in trial([PlacementRequest(6, GIB, cpus=1, memory_bytes=0)], busy)
        )
        runs = ["-p", "shared", "--mem=10", "-n2", "-N2", "-o/dev/null"]
        started = client.submit([*runs, "--gpus=a100:5"], script)
        until("it starts as placed", lambda: (at := client.job(started)) is not None and at.state == "RUNNING")
        at = client.job(started)
        assert at is not None
        assert set(at.nodes) == set(there.nodes)
        assert read(client).offers[1].groups[0].idle == {"n1": 0, "n2": 0}
        client.cancel([started], signal="KILL")
    finally:
        client.cancel([job], signal="KILL")
    until("all nodes idle", lambda: set(sandbox.status().values()) == {"IDLE"})
    client.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    assert read(client).offers[1].groups[0].idle == {"n1": 4, "n2": 0}
