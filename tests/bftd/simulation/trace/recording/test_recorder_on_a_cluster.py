"""`bft trace from-slurm` on a real cluster: a regular job, a drained node, a controller that goes away, a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bftd.simulation.trace import Trace, TraceError, read
from slurm_plugin.sandbox import Sandbox
from tests.support import waiting
from tests.support.clusters import Clusters
from tests.support.messages import says, wording
from tests.support.programs import ROOT, run_bft

pytestmark = pytest.mark.cluster

# No command takes so long, however busy the machine is.
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=3, tuned=True) as cluster:
        yield cluster


def until(condition: Callable[[], bool], what: str, path: Path) -> None:
    waiting.until(what, condition, lambda: so_far(path))


def start(sandbox: Sandbox, path: Path) -> subprocess.Popen[str]:
    """A recorder that polls every half second."""
    words = [sys.executable, "-m", "bftd.cli.main", "trace", "from-slurm", "-o", str(path), "--poll", "0.5"]
    config = path.with_name("bftd.toml")
    config.write_text("[slurm]\ntimeout_s = 1\n")
    env = sandbox.env() | {"PYTHONPATH": str(ROOT), "BFTD_CONFIG": str(config)}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def so_far(path: Path) -> Trace | None:
    try:
        return read(path)
    except TraceError:  # no row yet
        return None


def idle_now(path: Path) -> set[str]:
    trace = so_far(path)
    idle: set[str] = set()
    for change in trace.changes() if trace else ():
        idle = (idle | set(change.joined)) - set(change.left)
    return idle


def noted(path: Path, name: str) -> int:
    trace = so_far(path)
    return trace.notes.get(name, 0) if trace else 0


def test_the_recording_follows_the_cluster_across_a_kill(tmp_path: Path, sandbox: Sandbox) -> None:
    path, client = tmp_path / "t.csv.gz", sandbox.client()
    recorder = start(sandbox, path)
    try:
        until(lambda: idle_now(path) == {"n1", "n2", "n3"}, "all compute nodes idle", path)
        job_id = client.submit(["-p", "batch", "-w", "n2", "-o", "/dev/null"], "#!/bin/sh\nexec sleep 300\n")
        until(lambda: idle_now(path) == {"n1", "n3"}, "n2 left", path)
        assert client.run("scontrol", "update", "nodename=n3", "state=drain", "reason=test").code == 0
        until(lambda: idle_now(path) == {"n1"}, "n3 left", path)

        recorder.kill()
        recorder.wait(PATIENCE_S)
        before = noted(path, "gaps")  # on a busy machine a poll may be late
        assert idle_now(path) == {"n1"}, "the file of a killed recorder is a whole trace"
        assert client.run("scontrol", "update", "nodename=n3", "state=resume").code == 0
        client.cancel([job_id])
        recorder = start(sandbox, path)
        until(lambda: idle_now(path) == {"n1", "n2", "n3"}, "all nodes idle again", path)
        assert noted(path, "resumed") == 1
        assert noted(path, "gaps") > before

        recorder.send_signal(signal.SIGTERM)
        out, err = recorder.communicate(timeout=PATIENCE_S)
        assert (recorder.returncode, err) == (0, "")
        assert "3 nodes" in out
        assert read(path).duration_s > 1
    finally:
        recorder.kill()
        recorder.communicate()


def test_while_the_controller_is_away_no_node_counts_as_idle(tmp_path: Path, sandbox: Sandbox) -> None:
    path = tmp_path / "t.csv"
    recorder = start(sandbox, path)
    controller = _controller(sandbox)
    try:
        until(lambda: idle_now(path) == {"n1", "n2", "n3"}, "all compute nodes idle", path)
        os.kill(controller, signal.SIGSTOP)
        until(lambda: noted(path, "gaps") == 1, "a gap", path)
        assert idle_now(path) == set()
        os.kill(controller, signal.SIGCONT)
        until(lambda: idle_now(path) == {"n1", "n2", "n3"}, "all nodes idle again", path)
        recorder.send_signal(signal.SIGINT)
        _, err = recorder.communicate(timeout=PATIENCE_S)
        assert says(err, "whatif.session.missed")
        assert "Slurm answers again" in err
    finally:
        os.kill(controller, signal.SIGCONT)
        recorder.kill()
        recorder.communicate()


def test_a_partition_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, sandbox: Sandbox) -> None:
    env = sandbox.env() | {"BFTD_CONFIG": ""}
    shown = run_bft("trace", "from-slurm", "--partition", "night", "-o", "t.csv", env=env, cwd=tmp_path)
    assert shown.returncode == 2
    hint = "there are batch, bft-driver, elastic"
    error = wording("slurm_plugin.client.no_partition", name="night", hint=hint)
    assert shown.stderr == "bft: " + wording("cli.trace.name_partition", error=error) + "\n"


def test_a_cluster_without_accounting_says_what_to_use_instead(tmp_path: Path, sandbox: Sandbox) -> None:
    env = sandbox.env() | {"BFTD_CONFIG": ""}
    shown = run_bft("trace", "from-sacct", "--since", "2026-01-01", "-o", "t.csv", env=env, cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stderr.count("\n") == 1
    assert "bft: sacct failed: " in shown.stderr
    assert says(shown.stderr, "cli.trace.command_failed", command="sacct")


def _controller(sandbox: Sandbox) -> int:
    found = [int(path.read_text()) for path in Path(sandbox.conf).parent.rglob("slurmctld.pid")]
    assert len(found) == 1
    return found[0]


def test_regression_a_recording_shorter_than_two_polls_fails_with_what_to_do(sandbox: Sandbox, tmp_path: Path) -> None:
    words = ("from-slurm", "-o", "t.csv", "--partition=batch", "--poll=3600", "--hours=0.0001")
    shown = run_bft("trace", *words, env=sandbox.env(), cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    told = wording("cli.trace.nothing_recorded", output="t.csv", polls=1, least=2)
    assert shown.stderr == f"bft: {told}\n"
    assert not list(tmp_path.glob("t*"))
