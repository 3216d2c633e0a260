"""What users do to a queue every day, on a real cluster: the client sees all the rest beside it."""

from __future__ import annotations

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.pilots.pending_reasons import whole
from slurm_plugin.sandbox import Sandbox
from tests.bftd.builders import Pool, members
from tests.slurm_plugin.plugins import slurms_release
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

TASKS = ",".join(map(str, [1, 2, 4, 8, 16, 32, 64, *range(100, 901, 100)]))


def submit(client: SlurmClient, *options: str) -> str:
    return client.submit(["--output=/dev/null", "--time=3", *options], "#!/bin/sh\nsleep 100\n")


def test_regression_one_held_array_of_irregular_tasks_left_nobody_a_snapshot(client: SlurmClient) -> None:
    held = submit(client, "--hold", f"--array={TASKS}%3", "--job-name=odd", "--partition=batch")
    partly = submit(client, f"--array={TASKS}%2", "--nodes=1")
    running = {f"{partly}_1", f"{partly}_2"}
    until("two tasks run", lambda: {job.id for job in client.snapshot().jobs if job.state == "RUNNING"} == running)
    snapshot = client.snapshot()
    assert len(snapshot.nodes) == 5
    assert {whole(job) for job in snapshot.jobs if job.state == "PENDING"} == {held, partly}
    assert not any(job.unreadable for job in snapshot.jobs)
    (array,) = client.own_jobs("odd", "batch")
    assert array.id.startswith(f"{held}_[1-2,4,8,16,32,64,100,200,300,")
    assert array.id.endswith("%3]")
    assert {whole(job) for job in client.pending()} == {held, partly}
    assert client.job(held) == array


def test_regression_the_node_of_a_suspended_job_was_lent(client: SlurmClient) -> None:
    job_id = submit(client, "--nodelist=n1")

    def state() -> str:
        job = client.job(job_id)
        return job.state if job else "gone"

    until("the job runs", lambda: state() == "RUNNING")
    client.run("scontrol", "suspend", job_id)
    until("the job is suspended", lambda: state() == "SUSPENDED")
    until("Slurm shows the node idle", lambda: client.snapshot().nodes["n1"].state == "IDLE")
    pool = Pool()
    for _ in range(3):
        snapshot = client.snapshot()
        view = pool.see(snapshot.nodes.values(), snapshot.jobs)
    assert members(view) == {"n2", "n3", "n4"}
    assert view.nodes["n1"].why == f"has job {job_id} on it"


def test_memory_that_a_running_job_gives_back_is_free_at_the_next_poll() -> None:
    if slurms_release() < (26, 5):
        pytest.skip("a running job cannot give memory back before 26.05")
    with Sandbox(nodes=1, tuned=True, shared=True, extra_conf="PrologFlags=Contain") as sandbox:
        client = sandbox.client()
        job_id = submit(client, "--mem=2000", "--ntasks=1")

        def used_mb() -> int:
            return client.snapshot().nodes["n1"].memory_used_bytes // 2**20

        until("the job runs", lambda: used_mb() == 2000)

        def gives_back() -> bool:  # refused until the job's own step is there
            return client.run("scontrol", "update", f"job={job_id}", "MinMemoryNode=500").code == 0

        until("Slurm takes it back", gives_back)
        until("it is free", lambda: used_mb() == 500)
