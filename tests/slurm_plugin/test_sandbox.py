"""The private cluster's life: up, used, down, and nothing left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SandboxError, SlurmMissing
from slurm_plugin.sandbox import Sandbox, processes
from slurm_plugin.sandbox.config import ClusterShape, gres_conf, slurm_conf
from slurm_plugin.sandbox.ports import reserved_ports
from tests.support.waiting import until


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path, whatever pytest's own is, and no sandbox left in it even if the test fails."""
    with tempfile.TemporaryDirectory(prefix="bft-test-") as folder:
        path = Path(folder).resolve() / "cluster"
        yield path
        processes.end(path, grace_s=0, limit_s=10)


def test_nodes_are_split_evenly_among_gpu_types() -> None:
    shape = ClusterShape(nodes=5, gpus=(("a100", 4), ("v100", 1)))
    assert gres_conf(shape, Path("/dev")).splitlines() == [
        *(f"NodeName=n{number} Name=gpu Type=a100 File=/dev/nvidia[0-3]" for number in (1, 2, 3)),
        *(f"NodeName=n{number} Name=gpu Type=v100 File=/dev/nvidia0" for number in (4, 5)),
    ]


def test_only_who_asks_for_a_tuned_cluster_gets_another_scheduling_than_slurms_own() -> None:
    shapes = (ClusterShape(nodes=1, tuned=True), ClusterShape(nodes=1), Sandbox(nodes=1).shape)
    texts = [slurm_conf(shape, Path("/r"), "h", "u", [1, 2, 3]) for shape in shapes]
    for line in ("SchedulerParameters=", "KillWait="):
        assert [f"\n{line}" in text for text in texts] == [True, False, False]
    for line in ("PartitionName=elastic ", "PartitionName=bft-driver ", "JobSubmitPlugins=lua\n"):
        assert all(f"\n{line}" in text for text in texts)


def test_two_sandboxes_that_start_at_once_get_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_ports(40) as free:
        pass
    guesses = iter([free[0], free[10], free[20]])  # the second one's first guess overlaps the ports of the first
    monkeypatch.setattr("slurm_plugin.sandbox.ports.random.randrange", lambda *_: next(guesses))
    with reserved_ports(20) as first, reserved_ports(20) as second:
        assert (first, second) == (free[:20], free[20:])


def test_a_port_that_someone_listens_on_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        firsts = iter([taken - 1, taken + 1])
        monkeypatch.setattr("slurm_plugin.sandbox.ports.random.randrange", lambda *_: next(firsts))
        with reserved_ports(2) as ports:
            assert taken not in ports


def test_a_folder_that_holds_something_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(SandboxError, match="not empty"):
        Sandbox(root=tmp_path).up()
    assert (tmp_path / "precious").read_text() == "data"


def test_a_folder_that_slurm_cannot_use_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("with blank", "x" * 80):
        with pytest.raises(SandboxError, match="folder") as caught:
            Sandbox(root=tmp_path / name).up()
        assert "\n" not in str(caught.value)
        assert not (tmp_path / name).exists()


def test_without_slurm_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("slurm_plugin.sandbox.cluster._SBIN", ())
    with pytest.raises(SlurmMissing, match=r"slurmctld not found: .*apt-get install slurm-wlm"):
        Sandbox().up()


def test_impossible_shapes_are_refused() -> None:
    for options in ({"nodes": 0}, {"cpus_per_node": 0}, {"gpus": {"a100": 0}}, {"gpus": {"a 100": 1}}):
        with pytest.raises(SandboxError):
            Sandbox(**options)  # type: ignore[arg-type, unused-ignore]


def test_attaching_where_no_sandbox_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no sandbox in"):
        Sandbox.attach(tmp_path)


@pytest.mark.cluster
def test_a_sandbox_leaves_no_process_and_no_file_even_of_jobs_that_hide(root: Path, tmp_path: Path) -> None:
    stubborn = "#!/bin/sh\ntrap '' TERM\nsetsid sleep 300 &\ntouch started\nsrun --overlap sleep 300\n"
    with Sandbox(nodes=2, root=root, tuned=True) as sandbox:
        sandbox.client().submit(["--output=/dev/null", f"--chdir={tmp_path}"], stubborn)
        until("the job runs", (tmp_path / "started").exists)
        pids = [process.pid for process in processes.of_root(root)]
        assert len(pids) > 6  # slurmctld and its helper, 3 slurmds, a step daemon, the script, its child
    assert processes.of_root(root) == []
    assert not root.exists()


@pytest.mark.cluster
def test_a_client_that_merely_uses_the_sandbox_is_not_ended_with_it() -> None:
    with Sandbox(nodes=1, service_nodes=0) as sandbox:
        bystander = subprocess.Popen(["sleep", "300"], env=sandbox.env())
    try:
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.cluster
def test_a_crashed_sandbox_is_found_and_taken_down_from_its_folder(root: Path) -> None:
    crashed = Sandbox(nodes=2, root=root, gpus={"a100": 2}).up()
    os.kill(int((root / "run" / "slurmctld.pid").read_text()), signal.SIGKILL)
    assert root in Sandbox.running()
    found = Sandbox.attach(root)
    assert found.node_names == crashed.node_names
    assert found.shape == crashed.shape
    found.down()
    assert not root.exists()
    assert root not in Sandbox.running()
    found.down()


@pytest.mark.cluster
def test_the_folder_stays_when_asked_for_and_the_default_one_is_fresh() -> None:
    with Sandbox(nodes=1, service_nodes=0, keep=True) as sandbox:
        assert set(sandbox.status()) == {"n1"}
    assert (sandbox.root / "log" / "slurmctld.log").exists()
    assert sandbox.status() == {}
    Sandbox.attach(sandbox.root).down()
    assert not sandbox.root.exists()


@pytest.mark.cluster
def test_a_job_sees_the_gpus_of_its_node_and_many_drivers_fit_on_the_service_node(
    client: SlurmClient, tmp_path: Path
) -> None:
    script = "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES\n"
    client.submit([f"--output={tmp_path}/gpus", "--nodelist=n1", "--gres=gpu:a100:4"], script)
    until("four GPUs", lambda: (tmp_path / "gpus").exists() and (tmp_path / "gpus").read_text() == "0,1,2,3\n")
    drivers = ["--partition=bft-driver", "--ntasks=1", "--output=/dev/null"]
    ids = {client.submit(drivers, "#!/bin/sh\nsleep 60\n") for _ in range(5)}
    until("five drivers run", lambda: {job.id for job in client.snapshot().jobs if job.state == "RUNNING"} >= ids)
    client.cancel(ids)
