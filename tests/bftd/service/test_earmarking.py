"""From a snapshot to what a driver is told: a job that Slurm can start finds nodes that pilots have left in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftd.config.keys import Config
from bftd.core.invariants import validate_state
from bftd.core.model.earmark_usage import EarmarkUsage
from bftd.core.model.events import Registered
from bftd.ledger.file import Ledger
from bftd.protocol.lease import LeaseView
from bftd.service.service import Service
from slurm_plugin.read.types import Job, Scheduler, Snapshot
from tests.bftd.builders import job, lease, node, pilot, registration, reported
from tests.support.messages import wording

NAMES = ("n1", "n2", "n3", "n4", "n5")
# n5 is busy for an hour, so that a job on five nodes waits, and a shorter one on two may pass it by backfill alone.
RUNS = job("4000", "RUNNING", nodes=("n5",), start_s=900.0, time_limit_s=3600.0)
BLOCKED = job("4710", node_count=5, priority=10)
SHORT = job("4711", node_count=2, priority=5, time_limit_s=600.0)


class Site:
    """A service beside a Slurm whose backfill cycle ended at 1000 s, and a driver of two trainers that does as told."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.cancelled: list[str] = []
        self.service = Service(Config(), Ledger(path / "ledger"), self.cancelled.extend, lambda: self.now)
        self.pilots: dict[str, str] = {}

    def see(self, *jobs: Job) -> None:
        self.now += 1.0
        taken = {*self.pilots.values(), *(name for item in jobs for name in item.nodes)}
        nodes = {name: node(name, "ALLOCATED" if name in taken else "IDLE") for name in NAMES}
        shown = (*jobs, *(pilot(id_, where) for id_, where in self.pilots.items()))
        self.service.observe(Snapshot(self.now, nodes, shown, (), scheduler=Scheduler(cycled_s=1000.0)))
        validate_state(self.service.state)
        for item in self.service.state.leases.values():
            if item.job_id is None:
                id_ = f"7{item.id.rpartition('.')[2]}"
                self.pilots[id_] = item.node
                reports = lease(item.id, "placed", job_id=id_), lease(item.id, "working")
                self.service.apply(reported(self.now, item.trainer, *reports))

    def told(self, trainer: str) -> dict[str, LeaseView]:
        return {item.node: item for item in self.service.leases(trainer).leases if item.revoked}

    def end(self, trainer: str, *nodes: str) -> None:
        for item in list(self.service.state.leases.values()):
            if item.node in nodes:
                del self.pilots[item.job_id or ""]
                self.service.apply(reported(self.now, trainer, lease(item.id, "ended")))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two trainers work on two nodes each."""
    found = Site(tmp_path)
    for id_ in ("1", "2"):
        found.service.apply(Registered(found.now, registration(id_, 1, 2, curve=((1, 10.0), (2, 20.0)))))
    for _ in range(3):
        found.see(RUNS)
    assert {item.phase for item in found.service.state.leases.values()} == {"working"}
    return found


def test_pilots_leave_at_a_steps_end_before_the_cycle_that_starts_the_job(site: Site) -> None:
    one = job("4711", priority=5, time_limit_s=600.0)
    while site.now < 1019.0:
        site.see(RUNS, BLOCKED, one)
        assert (site.told("1"), site.told("2")) == ({}, {}), "they train on until shortly before the cycle"
    site.see(RUNS, BLOCKED, one)
    assert site.told("1") == {}
    ((where, told),) = site.told("2").items()
    assert where == "n1", "Slurm would take it if no pilot were there"
    assert not told.vacate
    assert told.leave_in_s == 1030.0 - 3.0 - site.now
    assert (
        told.reason == f"{where} is left to " + wording("pool.judgement.job_that_can_start", job=4711) + ", by 00:17:07"
    )
    site.see(RUNS, BLOCKED, one)
    site.end("2", where)
    while site.now < 1029.0:
        site.see(RUNS, BLOCKED, one)
        assert where not in site.pilots.values(), "nobody gets it meanwhile"
    site.see(RUNS, BLOCKED, job("4711", "RUNNING", nodes=(where,), start_s=1030.0, time_limit_s=600.0))
    assert site.service.state.earmark_usage == EarmarkUsage(1, 1, 0, 9.0, 0.0)
    assert site.cancelled == []
    assert not [item for item in site.service.ledger.events(0, 10_000) if item["kind"] == "give_back"]


def test_a_step_that_never_ends_is_ended_before_the_cycle(site: Site) -> None:
    while site.now < 1030.0:
        site.see(RUNS, BLOCKED, SHORT)
    whose = {site.pilots[id_] for id_ in site.cancelled}
    assert whose == set(site.service.state.pool.earmarks["4711"].nodes)
    assert len(whose) == 2


def test_a_job_that_is_first_in_line_gets_its_nodes_at_once(site: Site) -> None:
    site.see(RUNS, SHORT)
    told = site.told("1") | site.told("2")
    assert {name: item.leave_in_s for name, item in told.items() if item.vacate} == {"n1": None, "n2": None}
