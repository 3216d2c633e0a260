"""The main job on real daemons: bftd, Slurm, Horovod and torchrun together."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from elastic.driver.failures.blame import RESTARTS_MOST, TRIES
from tests.support import waiting
from tests.support.clusters import Clusters
from tests.support.messages import wording

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.horovod]

EXAMPLES = Path(__file__).parents[2] / "examples"


def until(what: str, condition: Callable[[], Any], site: SandboxSite) -> Any:
    """Waits for a true value while training goes on or logs grow; fails with the logs when it does not come."""
    written = waiting.written(site.root)

    def moved() -> object:
        with contextlib.suppress(BftError):  # the daemon may be what has ended
            return written(), [(item["id"], item["step"]) for item in site.client.status()["trainers"]]
        return written()

    def shown() -> str:
        logs = [site.log_path, *site.work.glob("*.log")]
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in logs)

    return waiting.until(what, condition, moved, shown)


def submit(site: SandboxSite, backend: str, elastic: str, *arguments: str) -> str:
    words = [f"--elastic={elastic},backend={backend}", "--parsable", f"--output={backend}.log", f"-J{backend}"]
    script = str(EXAMPLES / f"train_{backend}.py")
    done = site.bft("sbatch", *words, script, "--step-time-s=0.05", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trainer(site: SandboxSite, job: str) -> dict[str, Any]:
    found = [item for item in site.client.status()["trainers"] if item["id"] == job]
    return dict(found[0]) if found else {"state": "unknown", "working": 0, "step": 0}


def pilots(site: SandboxSite) -> dict[str, str]:
    """Pilot's job id -> node."""
    rows = site.slurm("squeue", "-h", "-n", "bft-pilot", "-t", "RUNNING", "-o", "%i %N").splitlines()
    return dict(row.split() for row in rows)  # type: ignore[misc]


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[SandboxSite]:
    """A site whose scheduler does not keep a test waiting; with Slurm's own settings for a test that asks for them."""
    tuned = getattr(request, "param", "tuned") == "tuned"
    with clusters.site(nodes=4, gpus={"a100": 2}, tuned=tuned) as site:
        site.start_daemon()
        yield site


@pytest.fixture(autouse=True)
def empty_cluster(site: SandboxSite) -> Iterator[None]:
    if site.daemon_pid is None:
        site.start_daemon()
    yield
    site.slurm("scancel", "--user=root") if Path.home() == Path("/root") else site.slurm("scancel", "--me")
    until("an empty queue", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)


def saved_step(site: SandboxSite, job: str) -> int:
    """The step of a trainer's checkpoint, as `bft checkpoints ls` tells it; -1 for none."""
    told = json.loads(site.bft("checkpoints", "ls", "--json").stdout)["checkpoints"]
    return next((state["step"] for state in told if state["id"] == job and state["step"] is not None), -1)


def test_two_trainers_share_the_idle_nodes_and_a_regular_job_takes_its_nodes_back(site: SandboxSite) -> None:
    share_and_give_back(site)


def share_and_give_back(site: SandboxSite) -> None:
    """The main job: two trainers on all nodes, a regular job that needs them all, and the trainers again."""
    horovod = submit(site, "horovod", "1-2,workers=1", "--steps=100000")
    torchrun = submit(site, "torchrun", "1-2,workers=1", "--steps=100000")
    until("both train", lambda: all(trainer(site, job)["working"] == 2 for job in (horovod, torchrun)), site)
    until("steps", lambda: all(trainer(site, job)["step"] > 20 for job in (horovod, torchrun)), site)

    site.slurm("sbatch", "-p", "batch", "-N", "4", "-t", "1", "-o", "/dev/null", "--wrap", "touch regular; sleep 1")
    until("the regular job's start", lambda: (site.work / "regular").exists(), site)
    assert not pilots(site)
    until("both suspended", lambda: all(trainer(site, job)["suspends"] == 1 for job in (horovod, torchrun)), site)
    steps = {job: trainer(site, job)["step"] for job in (horovod, torchrun)}
    until("both go on", lambda: all(trainer(site, job)["step"] > steps[job] for job in steps), site)

    text = site.bft("explain", horovod).stdout
    assert "horovod" in text
    assert "suspended to disk" in text
    seen = json.loads(site.bft("status", "--json").stdout)
    assert seen["give_back_s"]["count"] == 4
    assert seen["training_node_seconds"] <= seen["used_node_seconds"] <= seen["pool_node_seconds"]


def test_S3_a_killed_daemon_harms_nobody_and_L3_its_successor_adopts_every_pilot(site: SandboxSite) -> None:
    job = submit(site, "torchrun", "1-3,workers=1", "--steps=100000", "--save-every=5")
    until("training", lambda: trainer(site, job)["working"] == 3, site)
    until("a checkpoint", lambda: saved_step(site, job) >= 0, site)
    before = pilots(site)
    leases = {node["lease"] for node in site.client.status()["nodes"] if node["lease"]}
    assert site.stop_daemon(signal.SIGKILL) == -signal.SIGKILL
    step = saved_step(site, job)
    until("steps without a daemon", lambda: saved_step(site, job) > step + 20, site)
    assert pilots(site) == before
    site.start_daemon()
    until("the first snapshot", lambda: site.client.status()["nodes"], site)
    until("the driver's return", lambda: trainer(site, job)["working"] == 3, site)
    assert pilots(site) == before
    assert {node["lease"] for node in site.client.status()["nodes"] if node["lease"]} == leases


def test_a_trainer_in_the_foreground_ends_with_its_scripts_exit_code_and_leaves_no_pilot(site: SandboxSite) -> None:
    script = site.work / "short.py"
    script.write_text(
        "import os, sys, elastic\n"
        "elastic.step(samples=1)\n"
        # one write: two workers print at once
        'print(f\'workers {os.environ["LOCAL_WORLD_SIZE"]} {os.environ["CUDA_VISIBLE_DEVICES"]}\')\n'
        "sys.exit(0 if elastic.load() is None else 9)\n"
    )
    done = site.bft("run", "--nodes=1-1", str(script), timeout_s=600.0)
    assert done.returncode == 0, done.stdout + done.stderr
    # One worker a GPU, and every worker sees the node's GPUs as under plain torchrun.
    assert done.stdout.count("workers 2 0,1") == 2
    assert script.exists()
    until("the pilot's end", lambda: not pilots(site), site)


def test_regression_an_output_that_was_full_or_that_nobody_read_ended_training(site: SandboxSite) -> None:
    script = site.work / "talks.py"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys, time, elastic\n"
        "assert elastic.load() is None\n"
        "for step in range(20):\n"
        "    elastic.step(samples=1)\n"
        "    print('x' * 10_000, step)\n"
        "    time.sleep(0.05)\n"
        "open(sys.argv[1], 'w').close()\n"
    )
    words = ["--elastic=1-1,workers=1,backend=torchrun", "--parsable", "-Jfull", "--output=/dev/full"]
    done = site.bft("sbatch", *words, str(script), "sent-to-a-full-disk")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    shell = 'set -o pipefail; bft run --nodes=1-1,workers=1 "$0" read-by-nobody | head -1'
    argv = ["bash", "-c", shell, str(script)]
    said = subprocess.run(argv, cwd=site.work, env=site.env(), capture_output=True, text=True, check=False, timeout=300)
    assert (said.returncode, said.stdout.count("\n")) == (0, 1)
    assert said.stderr == wording("elastic.output.nobody_reads") + "\n"
    assert (site.work / "read-by-nobody").exists()
    until("the end of both", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)
    assert (site.work / "sent-to-a-full-disk").exists()
    assert "ExitCode=0:0" in site.slurm("scontrol", "show", "job", job)


def test_a_script_that_always_dies_ends_its_job_with_its_own_exit_code_and_error(site: SandboxSite) -> None:
    script = site.work / "broken.py"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint('about to fail')\nsys.exit(41)\n")
    done = site.bft("run", "--nodes=1-2,workers=1", str(script), timeout_s=600.0)
    assert done.returncode == 41, done.stdout + done.stderr
    # Three, if both nodes come at once; where one of them comes late the other is suspected first.
    failed = re.search(r"the script failed (\d+) times", done.stdout)
    assert failed is not None, done.stdout
    assert TRIES <= int(failed[1]) <= RESTARTS_MOST
    assert "Traceback" not in done.stdout + done.stderr


def test_sbatch_waits_for_a_job_and_ends_with_its_exit_code(site: SandboxSite) -> None:
    script = site.work / "failing.py"
    script.write_text(f"#!{sys.executable}\n#SBATCH --wait\nimport sys\nsys.exit(41)\n")
    done = site.bft("sbatch", "--elastic=1-2,workers=1", "--output=failing.log", str(script), timeout_s=600.0)
    assert done.returncode == 41, done.stdout + done.stderr
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)


def test_a_drained_node_is_given_back_in_order_and_nothing_is_lost(site: SandboxSite) -> None:
    job = submit(site, "horovod", "1-3,workers=1", "--steps=100000")
    until("training", lambda: trainer(site, job)["working"] == 3, site)
    node = next(iter(pilots(site).values()))
    site.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        # It goes on with the fourth node as soon as that one is warm.
        until("the node's return", lambda: node not in pilots(site).values(), site)
        until("training elsewhere", lambda: trainer(site, job)["working"] == 3, site)
        assert trainer(site, job)["steps_lost"] == 0
    finally:
        site.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_what_a_resize_costs_is_measured_kept_and_explained(site: SandboxSite) -> None:
    job = submit(site, "torchrun", "1-3,workers=1", "--steps=100000")
    until("training", lambda: trainer(site, job)["working"] == 3, site)
    until("steps", lambda: trainer(site, job)["step"] > 20, site)
    node = next(iter(pilots(site).values()))
    site.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    def resizes() -> list[dict[str, Any]]:
        events = site.client.request("GET", "/v1/events?after=0&limit=10000")["events"]
        told = [event["data"] for event in events if event["kind"] == "resize" and event["trainer"] == job]
        # The way to three nodes may have had one whose parts are not known: the old group had just begun, too.
        return [each for each in told if each["rendezvous_s"] is not None]

    try:
        told = until("a resize", resizes, site)[0]
    finally:
        site.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
    parts_s = told["save_s"] + told["rendezvous_s"] + told["load_s"]
    assert min(told["save_s"], told["rendezvous_s"], told["load_s"]) > 0
    first_step_s = told["stall_s"] - parts_s
    assert -1e-6 <= first_step_s <= max(1.5, told["stall_s"] / 3)
    assert told["state_bytes"] > 1000
    shown = json.loads(site.bft("explain", job, "--json").stdout)["trainer"]["resize_costs"]
    assert shown["last"]["stall_s"] > 0
    assert shown["save_s"] > 0
    last = site.bft("explain", job).stdout.splitlines()[-1]
    assert re.search(r"cost \d+\.\d s: \d+\.\d saving, \d+\.\d rendezvous, \d+\.\d loading", last)


def test_bft_nodes_prints_what_it_sees(site: SandboxSite) -> None:
    seen = json.loads(site.bft("nodes", "--json").stdout)
    assert {node["name"] for node in seen["nodes"]} >= {"n1", "n2", "n3", "n4", "svc1"}
    assert all(node["gpus"] == {"a100": 2} for node in seen["nodes"] if node["name"] != "svc1")


def test_the_live_view_runs_in_a_terminal_and_ends_on_interrupt(site: SandboxSite) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "bftd.cli.main", "status", "--watch"],
            env={**site.env(), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            shown = b""

            def picture() -> bool:
                nonlocal shown
                while select.select([ours], [], [], 0)[0]:
                    shown += os.read(ours, 65536)
                return b"Nodes" in shown

            try:
                until("a picture", picture, site)
                process.send_signal(signal.SIGINT)
                until("the end", lambda: picture() and process.poll() is not None, site)
            finally:
                process.kill()  # else a view that does not end would keep the test from saying so
            assert process.returncode == 130
            assert b"Traceback" not in shown
    finally:
        os.close(ours)
        os.close(theirs)


# The last one, as it has a cluster of its own.
@pytest.mark.parametrize("site", ["slurms-own-settings"], indirect=True)
def test_the_main_job_asks_nothing_of_slurms_scheduler(site: SandboxSite) -> None:
    shown = site.slurm("scontrol", "show", "config")
    assert re.search(r"(?m)^SchedulerParameters += \(null\)$", shown)
    assert re.search(r"(?m)^KillWait += 30 sec$", shown)
    share_and_give_back(site)
