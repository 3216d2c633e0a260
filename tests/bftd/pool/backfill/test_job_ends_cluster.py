"""When Slurm itself plans a job to start that waits for several running ones to end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from functools import partial

import pytest

from bftd.pool.backfill.job_ends import JobEnds
from bftd.pool.backfill.model import JobEnd, rank
from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from slurm_plugin.read.types import Job
from slurm_plugin.sandbox import Sandbox
from tests.support.waiting import until, written

pytestmark = pytest.mark.cluster
# Minutes that each job may run, and seconds until the next one is submitted: ends of all distances.
RUNNING = ((6, 3), (5, 2), (4, 1), (4, 3), (6, 1), (10, 2), (8, 3), (20, 0))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(nodes=len(RUNNING), tuned=True) as cluster:
        yield cluster


def submit(sandbox: Sandbox, nodes: int, minutes: int) -> str:
    argv = ["sbatch", "--parsable", "-p", "batch", f"-N{nodes}", "-t", str(minutes), "-o", "/dev/null"]
    done = subprocess.run(
        [*argv, "--wrap", "sleep 500"],
        env=sandbox.env(),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.strip()


def jobs(sandbox: Sandbox, state: str) -> list[Job]:
    return [job for job in sandbox.client().snapshot().jobs if job.state == state]


def planned(sandbox: Sandbox, name: str) -> float:
    """When Slurm plans to start a job, once it has a plan."""

    def start_s() -> float | None:
        for job in jobs(sandbox, "PENDING"):
            if job.id == name and job.sched_nodes:
                return job.start_s
        return None

    found = until(f"job {name} has a plan", start_s, written(sandbox.root / "log"))
    assert found is not None
    return found


def test_slurm_plans_a_job_for_the_end_of_the_same_group_as_the_copy(sandbox: Sandbox) -> None:
    for minutes, pause_s in RUNNING:
        submit(sandbox, 1, minutes)
        time.sleep(pause_s)
    until("all run", lambda: len(jobs(sandbox, "RUNNING")) == len(RUNNING), written(sandbox.root / "log"))
    ends: list[JobEnd] = []
    names = sandbox.node_names
    for job in jobs(sandbox, "RUNNING"):
        assert job.start_s is not None
        assert job.time_limit_s is not None
        ends.append(JobEnd(job.start_s + job.time_limit_s, 1 << names.index(job.nodes[0]), rank(job.id)))
    copy = JobEnds(0, ends, time.time())
    client = sandbox.client()
    until("the scheduler is read", lambda: client.snapshot().scheduler.read)
    scheduler = client.snapshot().scheduler
    theirs, ours = [], []
    for count in range(1, len(RUNNING) + 1):
        name = submit(sandbox, count, 1)
        theirs.append(planned(sandbox, name))
        need = NodeNeed(count, 0)
        choose = partial(for_plan, need=need, weights=[-1], one_by_order=scheduler.one_by_order)
        found = copy.start(-1, 0, need.met, chosen=choose if scheduler.by_chosen_ends else None)
        assert found is not None
        ours.append(found[0])
        subprocess.run(["scancel", name], env=sandbox.env(), check=True, timeout=300)
    first_s = min(end.at_s for end in ends)
    assert [at - first_s for at in ours] == [at - first_s for at in theirs]
