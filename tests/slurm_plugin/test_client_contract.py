"""What every reader of Slurm shows of one cluster, whichever way it reads: the text client, and pyslurm where it is."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.pyslurm_backend import PyslurmClient
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import Job, Snapshot
from slurm_plugin.sandbox import Sandbox
from tests.slurm_plugin.busy import BUSY_NODES
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

_SLEEP = "#!/bin/sh\nsleep 100\n"
Make = Callable[..., SlurmClient]


@pytest.fixture(params=[SlurmClient, PyslurmClient], ids=["text", "pyslurm"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make a client of the kind under test for a slurm.conf."""
    if request.param is PyslurmClient and importlib.util.find_spec("pyslurm") is None:
        pytest.skip("pyslurm is not installed: it has to be compiled for this Slurm release")
    made: list[SlurmClient] = []

    def make_one(conf: Path, timeout_s: float = 10.0, commands_dir: Path | None = None) -> SlurmClient:
        made.append(request.param(conf, timeout_s, commands_dir))
        return made[-1]

    yield make_one
    for client in made:
        if isinstance(client, PyslurmClient):
            client.close()


@pytest.fixture(scope="module")
def busy() -> Iterator[Sandbox]:
    """A cluster with a bit of everything in it."""
    with Sandbox(nodes=6, gpus={"a100": 4, "v100": 2}, tuned=True) as sandbox:
        client = sandbox.client()

        def submit(*options: str) -> str:
            return client.submit(["--output=/dev/null", "--time=3", *options], _SLEEP)

        running = submit("--nodes=2", "--nodelist=n[1-2]", "--account=physics", "--job-name=a | b", "--comment=odd = 1")
        until("the job runs", lambda: _job(client.snapshot(), running).state == "RUNNING")
        client.run("scontrol", "update", "nodename=n5", "state=drain", "reason=bad disk State=IDLE")
        client.run("scontrol", "update", "nodename=n6", "state=down", "reason=no power")
        planned = submit("--nodes=4", "--nodelist=n[1-4]", "--time=2:00:00")
        submit("--array=1-5%2", "--hold", f"--dependency=afterok:{running}", "--time=1-02:03:04")
        submit("--hold", "--partition=batch,elastic")
        # two tasks of an array that run, the others wait
        submit("--array=1-4%2", "--partition=bft-driver", "--ntasks=1")
        until("two tasks of the array run", lambda: len(client.snapshot().jobs) == 7)
        client.run(
            *("scontrol", "create", "reservation", "reservationname=repair", "starttime=now+7200", "duration=60"),
            *("nodes=n[1,3]", "user=root", "flags=maint,ignore_jobs"),
        )
        until("the queued job is planned", lambda: bool(_job(client.snapshot(), planned).sched_nodes))
        yield sandbox


def _job(snapshot: Snapshot, job_id: str) -> Job:
    return next(job for job in snapshot.jobs if job.id == job_id)


def test_nodes_are_shown_with_their_states_partitions_and_gpus(make: Make, busy: Sandbox) -> None:
    nodes = make(busy.conf).snapshot().nodes
    assert {name: (node.state, set(node.flags)) for name, node in nodes.items()} == BUSY_NODES
    assert nodes["n1"].partitions == ("batch", "elastic")
    assert (nodes["n1"].gres, dict(nodes["n1"].gpus)) == ("gpu:a100:4", {"a100": 4})
    assert (nodes["n6"].gres, nodes["svc1"].gres) == ("gpu:v100:2", "")
    assert (nodes["n1"].cpus, nodes["n1"].memory_bytes) == (4, 4000 * 2**20)
    assert nodes["n5"].reason.startswith("bad disk State=IDLE")


def test_jobs_are_shown_with_their_ids_states_and_plans(make: Make, busy: Sandbox) -> None:
    snapshot = make(busy.conf).snapshot()
    assert [(job.id, job.state, job.partition) for job in sorted(snapshot.jobs, key=lambda job: job.id)] == [
        ("1", "RUNNING", ("batch",)),
        ("2", "PENDING", ("batch",)),
        ("3_[1-5%2]", "PENDING", ("batch",)),
        ("4", "PENDING", ("batch", "elastic")),
        ("5_1", "RUNNING", ("bft-driver",)),
        ("5_2", "RUNNING", ("bft-driver",)),
        ("5_[3-4%2]", "PENDING", ("bft-driver",)),
    ]
    running, planned, array = (_job(snapshot, job_id) for job_id in ("1", "2", "3_[1-5%2]"))
    assert (running.name, running.comment, running.account) == ("a | b", "odd = 1", "physics")
    assert (running.nodes, running.node_count, running.time_limit_s) == (("n1", "n2"), 2, 180.0)
    assert running.start_s is not None
    assert planned.start_s == running.start_s + 180.0
    assert (planned.nodes, planned.sched_nodes) == ((), ("n1", "n2", "n3", "n4"))
    assert planned.reason in ("Resources", "ReqNodeNotAvail, May be reserved for other job")  # 24.11 says either
    assert planned.node_count == 4
    assert (array.time_limit_s, array.start_s, array.priority) == (93840.0, None, 0)
    assert array.dependency


def test_jobs_are_shown_with_what_they_ask_for(make: Make, busy: Sandbox) -> None:
    snapshot = make(busy.conf).snapshot()
    planned, running = _job(snapshot, "2").request, _job(snapshot, "1").request
    assert (planned.required, planned.excluded, planned.exclusive) == (("n1", "n2", "n3", "n4"), (), True)
    assert (planned.cpus, planned.memory_bytes, planned.least_s, planned.switches) == (4, 0, None, 0)
    assert (running.cpus, running.exclusive) == (8, True), "what it has"


def test_nodes_are_shown_with_what_jobs_have_of_them(make: Make, busy: Sandbox) -> None:
    nodes = make(busy.conf).snapshot().nodes
    assert {name: node.cpus_used for name, node in nodes.items() if node.cpus_used} == {"n1": 4, "n2": 4, "svc1": 2}
    assert {node.weight for node in nodes.values()} == {1}


def test_partitions_and_the_scheduler_are_shown_after_a_few_snapshots(make: Make, busy: Sandbox) -> None:
    client = make(busy.conf)
    for _ in range(4):
        snapshot = client.snapshot()
    assert (snapshot.partitions["batch"].priority_tier, snapshot.partitions["batch"].exclusive) == (10, True)
    assert snapshot.scheduler.read
    assert snapshot.scheduler.cycled_s is not None
    assert abs(snapshot.time_s - snapshot.scheduler.cycled_s) < 3600.0


def test_a_reservation_to_come_is_shown_with_its_nodes_and_times(make: Make, busy: Sandbox) -> None:
    reservations = {one.name: one for one in make(busy.conf).snapshot().reservations}
    repair = reservations["repair"]
    assert repair.nodes == ("n1", "n3")
    assert repair.end_s - repair.start_s == 3600.0
    assert repair.start_s > time.time() + 7000


def test_both_ways_show_the_same_but_for_free_text(make: Make, busy: Sandbox) -> None:
    text, other = busy.client().snapshot(), make(busy.conf).snapshot()
    # what Slurm counts among a node's TRES, the text shows, and pyslurm all GPUs that jobs have
    assert {name: replace(node, reason="", gpus_used={}) for name, node in other.nodes.items()} == {
        name: replace(node, reason="", gpus_used={}) for name, node in text.nodes.items()
    }

    def plain(jobs: tuple[Job, ...]) -> list[Job]:
        return [replace(job, reason="", dependency="") for job in sorted(jobs, key=lambda job: job.id)]

    assert plain(other.jobs) == plain(text.jobs)
    assert [replace(one, flags=frozenset()) for one in other.reservations] == [
        replace(one, flags=frozenset()) for one in text.reservations
    ]


def test_a_controller_that_is_down_is_an_error_in_time_and_never_an_empty_cluster(make: Make, tmp_path: Path) -> None:
    with Sandbox(nodes=1) as gone:
        conf = tmp_path / "slurm.conf"
        conf.write_text(gone.conf.read_text())
    start_s = time.monotonic()
    with pytest.raises(SnapshotError) as caught:
        make(conf, timeout_s=1.5).snapshot()
    assert time.monotonic() - start_s < 8.0  # it would be 10 s and more without the time-out
    assert "\n" not in str(caught.value)


def test_a_slurm_conf_that_is_not_there_is_an_error_in_one_line(make: Make, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as caught:
        make(tmp_path / "slurm.conf").snapshot()
    assert "\n" not in str(caught.value)
