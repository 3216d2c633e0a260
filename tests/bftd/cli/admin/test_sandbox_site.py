"""`bft sandbox`: a cluster with a daemon that outlives the command, and how to use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.api_client import ApiClient
from bftd.cli.admin.sandbox_site import SandboxSite
from bftd.cli.main import bft
from slurm_plugin.errors import SandboxError
from slurm_plugin.sandbox import Sandbox, processes
from tests.support.messages import says, wording
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path, and no sandbox left in it even if the test fails."""
    with tempfile.TemporaryDirectory(prefix="bft-test-") as folder:
        path = Path(folder).resolve() / "s"
        yield path
        processes.end(path, grace_s=0, limit_s=10)


def run(*words: str, shell: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`bft`, or a script, in an environment that knows nothing of this one."""
    argv = ["bash", "-euc", shell] if shell else [sys.executable, "-m", "bftd.cli.main", *words]
    bare = {"HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, env=bare, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.torch
def test_the_printed_lines_are_all_that_a_first_job_needs(root: Path, tmp_path: Path) -> None:
    up = run("sandbox", "up", "--nodes=2", "--tuned", f"--root={root}", cwd=tmp_path)
    assert up.returncode == 0, up.stderr
    assert SandboxSite.attach(root).cluster.shape.tuned
    # What points a shell at the cluster can be evaluated; what submits a job stands apart from it.
    assert "bft sbatch" not in up.stdout
    used = run(shell=up.stdout + up.stderr, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    assert "Submitted batch job 1" in used.stdout.splitlines()
    assert used.stdout.count("bftd ") == 1
    client = ApiClient(str(root / "bftd.sock"))
    until("the job trains", lambda: any(trainer["step"] > 0 for trainer in client.status()["trainers"]))

    shown = run("sandbox", "status", f"--root={root}").stdout
    pid = int(re.findall(r"; bftd runs \(pid (\d+)\)\n", shown)[0])
    assert b"bftd.daemon.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    seen = json.loads(run("sandbox", "status", f"--root={root}", "--json").stdout)
    assert seen["clusters"][str(root)].keys() == {"n1", "n2", "svc1"}

    again = run("sandbox", "up", f"--root={root}")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert says(again.stderr, "slurm_plugin.cluster.already_there", root=root, root2=root)
    assert client.status()["trainers"]

    down = run("sandbox", "down", f"--root={root}")
    assert down.returncode == 0, down.stderr
    assert not root.exists()
    assert processes.of_root(root) == []


def test_without_a_daemon_there_is_a_cluster_alone(root: Path) -> None:
    up = run("sandbox", "up", "--no-daemon", "--nodes=1", f"--root={root}")
    assert up.returncode == 0, up.stderr
    assert "export BFTD_CONFIG" not in up.stdout
    assert "unset BFTD_CONFIG\n" in up.stdout
    assert not SandboxSite.attach(root).cluster.shape.tuned, "Slurm's own settings, unless asked for others"
    assert up.stderr == ""
    assert run(shell=up.stdout + "sinfo -h -p batch -o %N").stdout == "n1\n"
    told = wording("cli.sandbox.no_daemon", shown="") + "\n"
    assert run("sandbox", "status", f"--root={root}").stdout.endswith(told)
    run("sandbox", "down", f"--root={root}")
    assert not root.exists()


def test_a_daemon_that_does_not_start_leaves_no_cluster_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SandboxSite, "_toml", lambda self: '[slurm]\npartition = "none"\n')
    result = CliRunner().invoke(bft, ["sandbox", "up", "--nodes=1", f"--root={root}"])
    assert says(str(result.exception), "bftd.sandbox_site.not_started")
    assert result.output == ""
    assert not root.exists()
    assert processes.of_root(root) == []


def test_regression_sigterm_while_a_cluster_starts_left_it_behind(root: Path) -> None:
    up = subprocess.Popen([sys.executable, "-m", "bftd.cli.main", "sandbox", "up", "--nodes=1", f"--root={root}"])
    until("the first of its processes", lambda: len(processes.of_root(root)) > 0)
    up.terminate()
    assert up.wait(timeout=300) == 130
    assert not root.exists()
    assert processes.of_root(root) == []


def test_a_pid_that_is_another_process_by_now_is_left_alone(root: Path) -> None:
    # a daemon too, but of another site
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "bftd.daemon.process"])
    try:
        site = SandboxSite(nodes=1, service_nodes=0, root=root).up()
        (root / "bftd.pid").write_text(f"{bystander.pid}\n")
        assert site.daemon_pid is None
        assert not processes.terminate(root, bystander.pid)
        SandboxSite.attach(root).down()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_daemon_that_will_not_end_is_ended_with_the_cluster(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bftd.cli.admin.sandbox_site._DOWN_S", 0.2)
    with SandboxSite(nodes=1, service_nodes=0, root=root) as site:
        site.start_daemon(detached=True)
        pid = site.daemon_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        SandboxSite.attach(root).down()
    assert not root.exists()
    assert processes.of_root(root) == []


def test_another_process_ends_the_daemon_in_peace_before_its_cluster(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SandboxSite(nodes=1, service_nodes=0, root=root) as site:
        site.start_daemon(detached=True)
        with monkeypatch.context() as patched:
            patched.setattr(Sandbox, "down", lambda self: None)
            SandboxSite.attach(root).down()
        assert "bftd has stopped" in site.log_path.read_text()
        assert SandboxSite.attach(root).daemon_pid is None


def test_there_is_no_site_where_none_was_started(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no sandbox in"):
        SandboxSite.attach(tmp_path)
    assert tmp_path not in Sandbox.running()
