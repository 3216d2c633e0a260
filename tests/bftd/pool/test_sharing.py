"""Nodes of which a pilot has a part: who may run beside it, and for whom it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bftd.config.keys import PoolConfig
from bftd.pool.harvest import Harvest
from bftd.pool.idle_filter import IdleWatch
from bftd.pool.membership import PoolMemory, observe
from slurm_plugin.read.types import Job, JobRequest, Node, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, Pool, job, members, node, pilot
from tests.support.messages import wording

MB = 2**20
LEASED = {"n1": "71"}


def part(cpus: int = 2, memory_mb: int = 256) -> JobRequest:
    """What a pilot has of a node, or a regular job asks for."""
    return JobRequest(exclusive=False, cpus=cpus, cpus_per_node=cpus, memory_bytes=memory_mb * MB)


def sharing(id_: str = "71", where: str = "n1", cpus: int = 2) -> Job:
    return pilot(id_, where, comment=f"bft 9 {where}.1", request=part(cpus))


def beside(id_: str = "5", where: str = "n1", state: str = "RUNNING", cpus: int = 1, **fields: Any) -> Job:
    return job(id_, state, nodes=(where,), request=part(cpus), **fields)


def used(name: str, cpus: int, memory_mb: int = 512, **fields: Any) -> Node:
    """A node of 4 CPUs and 1 GiB of which jobs have so much."""
    state = "ALLOCATED" if cpus == 4 else "MIXED"
    return node(name, state, cpus_used=cpus, memory_used_bytes=memory_mb * MB, **fields)


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "COMPLETING"])
def test_a_regular_job_beside_a_pilot_that_shares_takes_nothing_from_it(state: str, cpus: int) -> None:
    view = Pool().see([used("n1", 2 + cpus)], [sharing(), beside(state=state, cpus=cpus)], LEASED)
    found = view.nodes["n1"]
    assert (found.in_pool, found.wanted, found.co_located) == (True, False, "5")
    assert found.why == wording("pool.judgement.runs_pilot_on_part", beside=5)


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        (
            [pilot("71", "n1"), beside()],
            wording("pool.judgement.taken_beside_pilot", taken=wording("pool.judgement.has_job", job_id=5)),
        ),
        (
            [sharing(cpus=4), beside()],
            wording("pool.judgement.taken_beside_pilot", taken=wording("pool.judgement.has_job", job_id=5)),
        ),
        (
            [sharing(), beside(state="SUSPENDED")],
            wording("pool.judgement.taken_beside_pilot", taken=wording("pool.judgement.has_job", job_id=5)),
        ),
        (
            [sharing(), beside(), beside("6", state="STOPPED")],
            wording("pool.judgement.taken_beside_pilot", taken=wording("pool.judgement.has_job", job_id=6)),
        ),
    ],
)
def test_a_pilot_leaves_a_job_that_cannot_be_there_by_slurms_leave(jobs: list[Job], why: str) -> None:
    found = Pool().see([used("n1", 4)], jobs, LEASED).nodes["n1"]
    assert (found.in_pool, found.wanted, found.co_located, found.why) == (False, True, "", why)


def test_a_node_that_a_pilot_shared_is_lent_again_once_it_is_wholly_idle() -> None:
    pool = Pool()
    assert members(pool.see([used("n1", 3)], [sharing(), beside()], LEASED)) == {"n1"}
    for _ in range(3):
        view = pool.see([used("n1", 1)], [beside()])
        assert (members(view), view.nodes["n1"].wanted) == (set(), True)
    assert [members(pool.see([node("n1")])) for _ in range(2)] == [set(), {"n1"}], "idle polls count from then"


def test_a_pilot_leaves_a_shared_node_that_is_planned_for_a_job() -> None:
    pool = Pool()
    soon = job("9", sched_nodes=("n1",), start_s=pool.time_s + 2)
    found = pool.see([used("n1", 3)], [sharing(), beside(), soon], LEASED).nodes["n1"]
    assert (found.why, found.wanted) == ("is left to " + wording("pool.judgement.job_that_waits", planned=9), True)


def test_a_pilot_that_no_lease_stands_behind_is_no_neighbour_of_the_one_that_is_leased() -> None:
    jobs = [sharing("71"), sharing("99", cpus=1)]
    for some in (jobs, jobs[::-1]):
        view = Pool().see([used("n1", 3)], some, LEASED)
        assert view.nodes["n1"].pilot == "71"
        assert view.nodes["n1"].co_located == "99", "it runs, by Slurm's leave"
        assert view.pilots == {"71": "n1", "99": "n1"}


def test_a_shared_node_is_used_and_not_idle_to_who_counts_idle_nodes() -> None:
    watch = IdleWatch(PoolConfig(debounce_polls=1))
    nodes = {"n1": used("n1", 2), "n2": used("n2", 3)}
    jobs = (sharing(), sharing("72", "n2"), beside(where="n2"))
    assert watch.see(Snapshot(1000.0, nodes, jobs, ()), nodes) == {"n1"}


# Earmarks


def earmarks(nodes: list[Node], jobs: list[Job], leased: dict[str, str | None] = LEASED) -> dict[str, tuple[str, ...]]:
    view = Pool().see(nodes, jobs, leased)
    return {earmark.job: earmark.nodes for earmark in view.earmarks.values()}


def waits(id_: str = "9", cpus: int = 2, memory_mb: int = 256, **fields: Any) -> Job:
    return job(id_, request=part(cpus, memory_mb), **fields)


def test_no_node_is_earmarked_for_a_job_that_fits_beside_a_pilot() -> None:
    alone = used("n1", 2, 256)
    assert earmarks([alone], [sharing(), waits()]) == {}
    assert earmarks([alone], [sharing(), waits(cpus=3)]) == {"9": ("n1",)}
    assert earmarks([alone], [sharing(), waits(memory_mb=900)]) == {"9": ("n1",)}
    assert earmarks([alone], [sharing(), replace(waits(), request=JobRequest())]) == {"9": ("n1",)}, (
        "it shares with nobody"
    )
    assert earmarks([alone], [pilot("71", "n1"), replace(waits(), request=JobRequest())]) == {"9": ("n1",)}


def test_of_more_jobs_than_one_at_a_time_beside_each_pilot_the_others_get_earmarks() -> None:
    nodes = [used("n1", 2, 256), used("n2", 2, 256)]
    pilots = [sharing(), sharing("72", "n2")]
    leased: dict[str, str | None] = {"n1": "71", "n2": "72"}
    assert earmarks(nodes, [*pilots, waits("8"), waits("9")], leased) == {}
    tasks = waits("8_[1-4]")
    found = earmarks(nodes, [*pilots, tasks, waits("9", cpus=4)], leased)
    assert found == {}, "both nodes are taken by its tasks"
    assert earmarks(nodes, [*pilots, waits("8"), waits("9", cpus=4)], leased) == {"9": ("n2",)}


def test_a_pilot_beside_a_job_leaves_for_one_that_fits_once_it_is_gone() -> None:
    shared = used("n1", 3)
    jobs = [sharing(), beside()]
    assert earmarks([shared], [*jobs, waits(cpus=3)]) == {"9": ("n1",)}
    assert earmarks([shared], [*jobs, waits(cpus=1)]) == {}
    assert earmarks([shared], [*jobs, waits(cpus=4)]) == {}, "the regular job is in its way, not the pilot"
    assert earmarks([shared], [*jobs, waits(cpus=3, memory_mb=800)]) == {}, "and its memory"
    assert earmarks([used("n1", 4)], [sharing(), beside(cpus=2), waits(cpus=2)]) == {"9": ("n1",)}
    assert earmarks([shared], [*jobs, waits("8", cpus=3), waits("9", cpus=3)]) == {"8": ("n1",)}, "for one of them"


def test_a_pilot_leaves_a_shared_node_only_where_no_idle_one_does() -> None:
    nodes = [used("n1", 3), node("n2")]
    assert earmarks(nodes, [sharing(), beside(), waits(cpus=3)]) == {"9": ("n2",)}


def test_a_pilot_that_leaves_a_shared_node_is_told_so_at_once() -> None:
    view = Pool().see([used("n1", 3)], [sharing(), beside(), waits(cpus=3)], LEASED)
    assert view.earmarks["9"].leaving == ("n1",)
    assert (view.nodes["n1"].why, view.nodes["n1"].wanted) == (
        "is left to " + wording("pool.judgement.job_that_can_start", job=9),
        True,
    )


def test_a_pilot_on_a_shared_node_trains_on_until_the_cycle_that_starts_the_job_too() -> None:
    nodes = {one.name: one for one in (used("n1", 3), used("n2", 4))}
    runs = job("7", "RUNNING", nodes=("n2",), start_s=900.0, time_limit_s=900.0)
    ahead = job("8", node_count=2, priority=9, time_limit_s=600.0)
    jobs = (sharing(), beside(start_s=900.0, time_limit_s=300.0), runs, ahead, waits(cpus=3, time_limit_s=60.0))
    memory, scheduler = PoolMemory(), Scheduler(True, cycle_s=0.1, cycled_s=995.0)
    seen = {}
    for time_s in (1000.0, 1016.0):
        snapshot = Snapshot(time_s, nodes, jobs, (), scheduler=scheduler)
        memory, view = observe(memory, snapshot, PoolConfig(), Harvest.of(PARTITION), LEASED, {})
        seen[time_s] = (view.nodes["n1"].in_pool, view.nodes["n1"].wanted, view.nodes["n1"].why)
    assert seen[1000.0] == (True, False, wording("pool.judgement.until_next_cycle", job=9))
    assert seen[1016.0] == (False, True, "is left to " + wording("pool.judgement.job_that_can_start", job=9))
