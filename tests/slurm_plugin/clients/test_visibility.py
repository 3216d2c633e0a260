"""Who is shown less than there is, by PrivateData or by partitions that are not his, must not take it for all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from slurm_plugin.clients import visibility
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.clients.visibility import Visibility, hidden_from_us
from slurm_plugin.errors import CommandError, SnapshotError
from slurm_plugin.sandbox import Sandbox
from tests import program
from tests.slurm_plugin.plugins import NOBODY
from tests.slurm_plugin.site.sites import ASSETS
from tests.support.messages import pattern

SOMEBODY = 54321  # no user of this machine

# Imports first: the user may be unable to read what root has installed.
AS_NOBODY = f"""
import json, os
from pathlib import Path
import encodings.idna
from slurm_plugin.clients.client import SlurmClient
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
client = SlurmClient(Path(os.environ["SLURM_CONF"]))
snapshot = client.snapshot()
print(json.dumps({{
    "jobs": [job.id for job in snapshot.jobs],
    "pending": [job.id for job in client.pending()],
    "partitions": sorted(client.partitions()),
    "of n1": sorted(snapshot.nodes["n1"].partitions),
}}))
"""


class Slurm(SlurmClient):
    """A controller with this setting, and slurmdbd's answer about the user's level: None where there is no slurmdbd."""

    def __init__(self, private: str, level: str | None = "None", slurm_user: str = "slurm(64030)") -> None:
        super().__init__()
        text = (ASSETS / "22.05" / "recommended" / "config.txt").read_text()
        text = re.sub(r"(?m)^(PrivateData\s*= ).*$", rf"\g<1>{private}", text)
        self.config = CommandResult(0, re.sub(r"(?m)^(SlurmUser\s*= ).*$", rf"\g<1>{slurm_user}", text), "")
        self.level = level
        self.asked: list[str] = []

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        self.asked.append(command)
        if command == "scontrol":
            return self.config
        if self.level is None:
            raise CommandError("sacctmgr gave no answer")
        return CommandResult(0, f"{self.level}\n", "")


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility.os, "geteuid", lambda: SOMEBODY)


@pytest.mark.parametrize("private", ["none", "accounts", "accounts,events,usage,users"])
def test_what_hides_nothing_of_a_snapshot_costs_one_call(private: str) -> None:
    slurm = Slurm(private)
    assert hidden_from_us(slurm) == ()
    assert slurm.asked == ["scontrol"]


@pytest.mark.parametrize("level", ["None", "", None])
def test_jobs_and_nodes_are_hidden_from_who_is_no_operator(level: str | None) -> None:
    assert hidden_from_us(Slurm("accounts,jobs, nodes", level)) == ("jobs", "nodes")


@pytest.mark.parametrize("level", ["Operator", "Administrator"])
def test_operators_see_everything(level: str) -> None:
    assert hidden_from_us(Slurm("jobs,nodes,partitions,reservations", level)) == ()


def test_root_and_the_user_of_slurm_see_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hidden_from_us(Slurm("jobs", None, f"slurm({SOMEBODY})")) == ()
    monkeypatch.setattr(visibility.os, "geteuid", lambda: 0)
    assert hidden_from_us(Slurm("jobs", None)) == ()


def test_nobody_plans_on_a_part_of_the_queue_and_rights_count_from_the_next_poll() -> None:
    slurm = Slurm("jobs")
    check = Visibility(slurm, lambda: 0.0).check
    for _ in range(2):
        with pytest.raises(SnapshotError, match=rf"Slurm hides jobs from {SOMEBODY} \(PrivateData\).*operator level"):
            check()
    slurm.level = "Operator"
    check()


def test_while_all_is_well_it_is_asked_for_now_and_then_and_a_change_is_noticed() -> None:
    now_s = 0.0
    slurm = Slurm("none")
    check = Visibility(slurm, lambda: now_s).check
    for _ in range(100):
        check()
    assert len(slurm.asked) == 1
    slurm.config, now_s = Slurm("jobs").config, 400.0
    with pytest.raises(SnapshotError):
        check()


AWAY = CommandResult(1, "", "Unable to contact slurm controller")
SHOWN = Slurm("jobs").config.out
UNREADABLE = [
    pytest.param(AWAY, id="away"),
    pytest.param(
        CommandResult(0, "Configuration data as of now\nPrivateData = jobs\nSLURM_CONF = /x\n\n", ""), id="cut"
    ),
    pytest.param(CommandResult(0, re.sub(r"(?m)^PrivateData.*\n", "", SHOWN), ""), id="without the key"),
]


@pytest.mark.parametrize("answer", UNREADABLE)
def test_regression_a_configuration_that_was_never_read_passed_for_one_that_hides_nothing(
    answer: CommandResult,
) -> None:
    slurm = Slurm("jobs")
    config, slurm.config = slurm.config, answer
    check = Visibility(slurm, lambda: 0.0).check
    for _ in range(3):
        with pytest.raises(SnapshotError, match=pattern("slurm_plugin.visibility.cannot_tell")) as caught:
            check()
        assert "\n" not in str(caught.value)
    slurm.config = config
    with pytest.raises(SnapshotError, match="hides jobs"):
        check()


@pytest.mark.parametrize("answer", UNREADABLE)
def test_what_was_read_is_believed_for_a_quarter_of_an_hour_and_the_look_that_is_due_costs_no_call_a_poll(
    answer: CommandResult,
) -> None:
    now_s = 0.0
    slurm = Slurm("none")
    check = Visibility(slurm, lambda: now_s).check
    check()
    slurm.config = answer
    for _ in range(899):
        now_s += 1.0
        check()
    assert len(slurm.asked) < 50
    now_s = 901.0
    with pytest.raises(SnapshotError, match="cannot be told"):
        check()


def test_what_is_hidden_later_is_noticed_within_five_minutes_and_stays_noticed() -> None:
    now_s = 0.0
    slurm = Slurm("none")
    check = Visibility(slurm, lambda: now_s).check
    check()
    slurm.config = Slurm("jobs").config
    now_s = 300.0
    for _ in range(10):
        with pytest.raises(SnapshotError, match="hides jobs"):
            check()
        now_s += 1.0


@pytest.mark.cluster
@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("closed", ["AllowGroups=root", "Hidden=YES"])
def test_jobs_of_a_partition_that_is_not_the_users_are_seen_all_the_same(
    sandbox: Sandbox, client: SlurmClient, closed: str
) -> None:
    job = client.submit(["-p", "batch", "-N1", "-t5", "--hold", "-o", "/dev/null"], "#!/bin/sh\ntrue\n")
    client.run("scontrol", "update", "PartitionName=batch", closed)
    try:
        seen = subprocess.run(
            [sys.executable, "-c", AS_NOBODY], cwd="/", env={**sandbox.env(), "PYTHONPATH": program.python_path()},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        client.run("scontrol", "update", "PartitionName=batch", "AllowGroups=ALL", "Hidden=NO")
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout) == {
        "jobs": [job],
        "pending": [job],
        "partitions": ["batch", "bft-driver", "elastic"],
        "of n1": ["batch", "elastic"],
    }
