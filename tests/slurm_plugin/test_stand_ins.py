"""Nodes without a slurmd of their own: they look idle, are lent and given back, and stay so."""

from __future__ import annotations

import pytest

from slurm_plugin.sandbox import Sandbox
from tests.support.waiting import until


@pytest.mark.cluster
def test_stand_ins_are_idle_are_lent_and_come_back() -> None:
    with Sandbox(nodes=1, tuned=True, stand_ins={"rack1-n[001-003]": "CPUs=8 Feature=spare"}) as cluster:
        names = {"n1", "svc1", "rack1-n001", "rack1-n002", "rack1-n003"}
        assert cluster.status() == dict.fromkeys(names, "IDLE")
        client = cluster.client()
        words = ["--immediate=1", "--no-shell", "--nodes=1", "--exclusive", "--time=1", "--nodelist=rack1-n002"]
        granted = client.run("salloc", "--partition=elastic", *words)
        assert granted.code == 0, granted.complaint
        assert cluster.status()["rack1-n002"] == "ALLOCATED"
        client.cancel([granted.err.split("Granted job allocation ")[1].split()[0]], "KILL")
        until("the node is given back", lambda: set(cluster.status().values()) == {"IDLE"})
        assert Sandbox.attach(cluster.root).shape == cluster.shape
