"""The main job on real daemons: bftd, Slurm, Horovod and torchrun together."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from typing import Any

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.e2e.trainers import pilots, share_and_give_back, submit, trainer, until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.torch,
    pytest.mark.horovod,
    pytest.mark.usefixtures("empty_cluster"),
]


def saved_step(site: SandboxSite, job: str) -> int:
    """The step of a trainer's checkpoint, as `bft checkpoints ls` tells it; -1 for none."""
    told = json.loads(site.bft("checkpoints", "ls", "--json").stdout)["checkpoints"]
    return next((state["step"] for state in told if state["id"] == job and state["step"] is not None), -1)


def test_two_trainers_share_the_idle_nodes_and_a_regular_job_takes_its_nodes_back(site: SandboxSite) -> None:
    share_and_give_back(site)


def test_S3_a_killed_daemon_harms_nobody_and_L3_its_successor_adopts_every_pilot(site: SandboxSite) -> None:
    job = submit(site, "torchrun", "1-2,workers=1", "--steps=100000", "--save-every=5")
    until("training", lambda: trainer(site, job)["working"] == 2, site)
    until("a checkpoint", lambda: saved_step(site, job) >= 0, site)
    before = pilots(site)
    leases = {node["lease"] for node in site.client.status()["nodes"] if node["lease"]}
    assert site.stop_daemon(signal.SIGKILL) == -signal.SIGKILL
    step = saved_step(site, job)
    until("steps without a daemon", lambda: saved_step(site, job) > step + 20, site)
    assert pilots(site) == before
    site.start_daemon()
    until("the first snapshot", lambda: site.client.status()["nodes"], site)
    until("the driver's return", lambda: trainer(site, job)["working"] == 2, site)
    assert pilots(site) == before
    assert {node["lease"] for node in site.client.status()["nodes"] if node["lease"]} == leases


def test_a_drained_node_is_given_back_without_a_loss_and_what_the_resize_costs_is_measured_kept_and_explained(
    site: SandboxSite,
) -> None:
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
        # It goes on with the fourth node as soon as that one is warm.
        until("the node's return", lambda: node not in pilots(site).values(), site)
        until("training elsewhere", lambda: trainer(site, job)["working"] == 3, site)
        assert trainer(site, job)["steps_lost"] == 0
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
