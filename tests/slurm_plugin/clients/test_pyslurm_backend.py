"""The process around pyslurm, with a pyslurm that misbehaves as the real one does."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from slurm_plugin.clients.ending import left
from slurm_plugin.clients.pyslurm_backend import PyslurmClient
from slurm_plugin.errors import SnapshotError
from slurm_plugin.pilots.pending_reasons import lacks_plan
from slurm_plugin.read.types import NO_REQUEST, JobRequest
from tests.support.messages import pattern, wording
from tests.support.waiting import until

GOOD = """
from enum import Flag
from types import SimpleNamespace as New

class Flags(Flag):
    MAINT, FLEX = 1, 2

class Answers:
    def __init__(self, *rows): self.rows = rows
    def load(self): return {index: row for index, row in enumerate(self.rows)}

Nodes = Answers(New(name="n1", state="IDLE+PLANNED", partitions=["batch"], active_features=["ib"],
    configured_gres={"gpu:a100": 4}, total_cpus=8, real_memory=1200, reason=None, weight=7, allocated_cpus=2,
    allocated_memory=500, memory_reserved_system=200, allocated_gres={"gpu:a100": 1}))
Jobs = Answers(
    New(id=7, state="COMPLETED"),
    New(id=8, state="PENDING", array_id=8, array_tasks_waiting="3-5", array_tasks_parallel=2, array_task_id=None,
        heterogeneous_id=0, heterogeneous_offset=0, user_name="alice", partition="batch,elastic", name="x",
        allocated_nodes=None, scheduled_nodes="n1", start_time=50, submit_time=40, time_limit=3, num_nodes=1,
        state_reason="Priority", comment=None, dependencies={"afterok": [1, 2], "after": [], "satisfy": "all"},
        priority=5, reservation=None, account="physics", constraints=["ib", "fast"], required_nodes="n[1-2]",
        excluded_nodes=None, requires_contiguous_nodes=True, resource_sharing="OK", time_limit_min=2, cpus=16,
        min_cpus_per_node=4, memory_per_cpu=1000, memory_per_node=None, gres_per_node={"gpu:a100": 2},
        required_switches=1))
Reservations = Answers(New(name="r", nodes="n1", start_time=60, end_time=70, flags=Flags.FLEX))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module that is found as pyslurm."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "pyslurm.py"
    path.write_text(GOOD)
    return path


def test_an_answer_becomes_the_objects_that_the_text_client_makes(fake: Path) -> None:
    with PyslurmClient() as client:
        snapshot = client.snapshot()
    node, (job,), (reservation,) = snapshot.nodes["n1"], snapshot.jobs, snapshot.reservations
    assert (node.state, node.flags, node.gres, node.memory_bytes) == ("IDLE", {"PLANNED"}, "gpu:a100:4", 1000 * 2**20)
    assert (job.id, job.partition, job.time_limit_s) == ("8_[3-5%2]", ("batch", "elastic"), 180.0)
    assert (job.sched_nodes, job.dependency, job.account) == (("n1",), "afterok:1:2", "physics")
    assert (reservation.nodes, reservation.end_s, reservation.flags) == (("n1",), 70.0, {"FLEX"})
    assert (node.weight, node.cpus_used, node.memory_used_bytes, node.gpus_used) == (7, 2, 500 * 2**20, {"a100": 1})
    assert snapshot.begun_s is not None
    assert snapshot.begun_s < snapshot.time_s
    assert job.request == JobRequest(
        features="ib,fast",
        required=("n1", "n2"),
        contiguous=True,
        least_s=120.0,
        exclusive=False,
        cpus=16,
        cpus_per_node=4,
        memory_bytes=1000 * 2**20,
        memory_per_cpu=True,
        gres="gpu:a100:2",
        switches=1,
    )


@pytest.mark.parametrize("change", ["required_nodes = 'n[1-'", "cpus = 'many'", "__delattr__('constraints')"])
def test_a_request_that_cannot_be_read_is_unknown_and_its_job_waits_as_it_did(fake: Path, change: str) -> None:
    fake.write_text(GOOD + f"\nJobs.rows[1].{change}\n")
    with PyslurmClient() as client:
        (job,) = client.snapshot().jobs
    assert (job.request, job.unreadable, job.sched_nodes) == (NO_REQUEST, "", ("n1",))


def test_an_expedited_job_is_one_that_waits_before_all_others(fake: Path) -> None:
    fake.write_text(GOOD + "\nJobs.rows[1].state = 'EXPEDITING'\n")
    with PyslurmClient() as client:
        (job,) = client.snapshot().jobs
    assert (job.state, job.expedited) == ("PENDING", True)


def test_gpus_that_nobody_uses_are_not_counted_as_used(fake: Path) -> None:
    fake.write_text(GOOD + "\nNodes.rows[0].allocated_gres = {'gpu:a100': 0}\n")
    with PyslurmClient() as client:
        assert client.snapshot().nodes["n1"].gpus_used == {}


def test_a_library_that_does_not_tell_what_jobs_have_of_a_node_shows_it_unused(fake: Path) -> None:
    fake.write_text(
        GOOD + "\nfor name in ('weight', 'allocated_cpus', 'allocated_memory', 'allocated_gres'):\n"
        "    delattr(Nodes.rows[0], name)\n"
    )
    with PyslurmClient() as client:
        node = client.snapshot().nodes["n1"]
    assert (node.weight, node.cpus_used, node.memory_used_bytes, node.gpus_used) == (1, 0, 0, {})


def test_one_process_serves_many_snapshots_and_a_dead_one_is_replaced(fake: Path) -> None:
    fake.write_text(GOOD + "\nimport os\nopen(__file__ + '.starts', 'a').write(f'{os.getpid()}\\n')\n")
    starts = fake.with_name("pyslurm.py.starts")
    with PyslurmClient() as client:
        client.snapshot()
        client.snapshot()
        (pid,) = starts.read_text().split()
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(SnapshotError):
            client.snapshot()
        assert client.snapshot().nodes
    assert len(starts.read_text().split()) == 2


def test_a_library_that_answers_too_late_is_killed(fake: Path) -> None:
    fake.write_text(GOOD + "\nimport os, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    client = PyslurmClient(timeout_s=1.0)
    with pytest.raises(SnapshotError, match=pattern("slurm_plugin.pyslurm_backend.no_answer", limit_s=1)):
        client.snapshot()
    assert client.waited_s >= 1.0
    pid = int(fake.with_name("pyslurm.py.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(
            "import sys, os; sys.stderr.write('fatal: no slurm.conf\\n'); os._exit(1)", "fatal: no", id="dies"
        ),
        pytest.param(
            'raise ModuleNotFoundError("' + wording("slurm_plugin.pyslurm_backend.no_pyslurm") + '")',
            "is not installed",
            id="absent",
        ),
        pytest.param(GOOD + "\nNodes = Answers()", pattern("slurm_plugin.client.no_node"), id="empty"),
        pytest.param(GOOD + "\nJobs = None", "pyslurm failed: AttributeError", id="fails"),
        pytest.param(GOOD + "\nNodes.rows[0].total_cpus = None", "makes no sense", id="nonsense"),
        pytest.param(GOOD + "\nNodes.rows[0].state = '?'", "makes no sense", id="state"),
    ],
)
def test_no_whole_answer_is_an_error_in_one_line_and_never_an_empty_cluster(fake: Path, code: str, said: str) -> None:
    fake.write_text(code)
    with PyslurmClient() as client, pytest.raises(SnapshotError, match=said) as caught:
        client.snapshot()
    assert "\n" not in str(caught.value)


def test_regression_a_library_process_that_survives_its_kill_ended_the_daemon(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.write_text(GOOD + "\nimport time\ntime.sleep(60)\n")
    client = PyslurmClient(timeout_s=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", late)
        with pytest.raises(SnapshotError, match=pattern("slurm_plugin.pyslurm_backend.no_answer", limit_s=0.2)):
            client.snapshot()
    until("it is reaped", lambda: not left())
    fake.write_text(GOOD)
    with PyslurmClient() as client:
        assert client.snapshot().nodes


def late(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)


def test_a_process_that_cannot_be_started_is_an_error_in_one_line(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with (
        PyslurmClient() as client,
        pytest.raises(
            SnapshotError, match=pattern("slurm_plugin.pyslurm_backend.not_started", strerror="Too many open files")
        ),
    ):
        client.snapshot()


def test_regression_an_answer_on_a_descriptor_beyond_1023_ended_the_daemon(fake: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 1200:
        pytest.skip("no more than 1,024 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, limits[1]))
    try:
        with contextlib.ExitStack() as many:
            while many.enter_context(open(os.devnull)).fileno() < 1050:  # this process has some of other tests
                pass
            with PyslurmClient() as client:
                assert client.snapshot().nodes
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("change", "job_id", "partition"),
    [
        ("num_nodes = 'many'", "8_[3-5%2]", ("batch", "elastic")),
        ("scheduled_nodes = 'n[1-'", "8_[3-5%2]", ("batch", "elastic")),
        ("partition = None", "8_[3-5%2]", ()),
        ("__delattr__('submit_time')", "8", ("batch", "elastic")),
    ],
)
def test_a_pending_job_that_cannot_be_read_waits_without_a_plan(
    fake: Path, change: str, job_id: str, partition: tuple[str, ...]
) -> None:
    fake.write_text(GOOD + f"\nJobs.rows[1].{change}\n")
    with PyslurmClient() as client:
        (job,) = client.snapshot().jobs
    assert (job.id, job.partition, job.sched_nodes) == (job_id, partition, ())
    assert job.unreadable
    assert lacks_plan(job, 0.0, 20.0)


def test_any_other_job_that_cannot_be_read_voids_the_snapshot(fake: Path) -> None:
    for change in ("num_nodes = 'many'", "__delattr__('submit_time')"):
        fake.write_text(GOOD + f"\nJobs.rows[1].state = 'SUSPENDED'\nJobs.rows[1].{change}\n")
        with PyslurmClient() as client, pytest.raises(SnapshotError) as caught:
            client.snapshot()
        assert str(caught.value).isprintable()


def test_what_the_library_prints_is_no_answer(fake: Path) -> None:
    fake.write_text("print('hello', flush=True)\n" + GOOD)
    with PyslurmClient() as client:
        assert client.snapshot().nodes
