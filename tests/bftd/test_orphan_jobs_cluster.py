"""A user who goes round the daemon, on a real cluster: named, and cancelled only where Slurm and the site allow it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bftd.api_client import ApiClient
from bftd.base.errors import BftError
from slurm_plugin.sandbox import Sandbox
from tests import program
from tests.support.clusters import Clusters
from tests.support.messages import says, wording
from tests.support.waiting import until, written

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user"),
]
# No command takes so long, however busy the machine is.
PATIENCE_S = 240.0
# Imports first: the user may be unable to read the Python that root has installed.
AS_USER = """
import encodings.ascii, encodings.idna, os, sys
from bftd.daemon import process
uid = int(sys.argv.pop(1))
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
process.main()
"""


@pytest.fixture
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    """Three compute nodes."""
    with clusters.lend(nodes=3, tuned=True) as cluster:
        yield cluster


def as_user(name: str) -> dict[str, Any]:
    """What makes a child process run as another user."""
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


@contextmanager
def daemon(folder: Path, sandbox: Sandbox, user: str, operator: bool) -> Iterator[ApiClient]:
    """A daemon that runs as `user`; its log is folder/log."""
    folder.mkdir(exist_ok=True)
    config, entry = folder / "bftd.toml", pwd.getpwnam(user)
    config.write_text(
        f'[slurm]\nconf = "{sandbox.conf}"\npoll_s = 0.5\noperator = {str(operator).lower()}\n'
        f'[api]\nsocket = "{folder}/socket"\n[ledger]\npath = "{folder}/ledger"\n'
    )
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    argv = [sys.executable, "-c", AS_USER, str(entry.pw_uid), "--config", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=sandbox.env() | {"PYTHONPATH": program.python_path()}, stderr=log)
    client = ApiClient(str(folder / "socket"))
    try:
        until("the daemon answers", lambda: process.poll() is not None or answers(client), written(folder))
        assert process.poll() is None, (folder / "log").read_text()
        yield client
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(client: ApiClient) -> bool:
    """Whether the daemon serves."""
    try:
        client.status()
    except BftError:
        return False
    return True


def salloc(sandbox: Sandbox, user: str, node: str, account: str, *options: str) -> str:
    """The id of an allocation that a user makes himself."""
    argv = [sandbox.client().path("salloc"), "--immediate=1", "--no-shell", "--partition=elastic", "-N1", "-t5"]
    made = subprocess.run(
        [*argv, f"--nodelist={node}", f"--account={account}", *options],
        env=sandbox.client().environ(), capture_output=True, text=True, timeout=PATIENCE_S, **as_user(user),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stderr.split("job allocation ")[1].split()[0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach; pytest closes the parents of tmp_path whenever another run begins."""
    with tempfile.TemporaryDirectory(prefix="bft-open-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def orphan_jobs(client: ApiClient) -> dict[str, dict[str, Any]]:
    """The jobs that the daemon names, by id."""
    return {job["job_id"]: job for job in client.status()["orphan_jobs"]}


def watches(client: ApiClient) -> None:
    """Wait until what is submitted from now on is younger than the daemon: Slurm tells whole seconds."""
    until("Slurm is seen", lambda: client.status()["snapshot_age_s"] is not None, str)
    seen_s = time.time()
    until("another second", lambda: time.time() > seen_s + 1.0, time.time)


def test_an_allocation_round_the_daemon_is_named_and_cancelled_only_with_operator_rights(
    open_folder: Path, sandbox: Sandbox
) -> None:
    old = salloc(sandbox, "nobody", "n3", "chem")
    of_root = salloc(sandbox, "root", "n2", "ops")

    def runs(id_: str) -> bool:
        job = sandbox.client().job(id_)
        return job is not None and job.state == "RUNNING"

    logs = written(sandbox.root / "log", open_folder)
    with daemon(open_folder / "without", sandbox, "root", operator=False) as client:
        until("both are named", lambda: len(orphan_jobs(client)) == 2, logs)
        shown = orphan_jobs(client)[old]
        assert (shown["user"], shown["account"], shown["nodes"]) == ("nobody", "chem", ["n3"])
        assert 0 < shown["since_s"] <= time.time()
        assert not shown["cancelled"]
        (node,) = (node for node in client.status()["nodes"] if node["name"] == "n3")
        assert (node["in_pool"], node["why"]) == (
            False,
            wording("pool.judgement.runs_orphan", pilot=old),
        )
        events = client.request("GET", "/v1/events")["events"]
        assert [event["data"]["job_id"] for event in events if event["kind"] == "stray"].count(old) == 1

    # the site says that it gave the rights, but in Slurm this user has none
    with daemon(open_folder / "refused", sandbox, "games", operator=True) as client:
        watches(client)
        young = salloc(sandbox, "nobody", "n1", "chem")
        until("it is to be cancelled", lambda: orphan_jobs(client).get(young, {}).get("cancelled", False), logs)
        log = open_folder / "refused" / "log"
        until("Slurm refuses", lambda: "scancel failed" in log.read_text(), logs)
        assert runs(young)
        assert log.read_text().count("cancelling job") == 1
    sandbox.client().cancel([young])

    with daemon(open_folder / "with", sandbox, "root", operator=True) as client:
        watches(client)
        young = salloc(sandbox, "nobody", "n1", "chem")
        until("it is cancelled", lambda: not runs(young), logs)
        until("the others are left", lambda: set(orphan_jobs(client)) == {of_root, old}, logs)
        assert not orphan_jobs(client)[of_root]["cancelled"], "a job of the administrators' own"
        assert not orphan_jobs(client)[old]["cancelled"], "a job that is older than the daemon"
        dry = bftd(open_folder / "with", sandbox, "--dry-run")
        # squeue puts the job first that started in a later second, and leaves those of one second as they were
        *jobs, count, rule = dry.stdout.splitlines()
        assert [*sorted(jobs), count, rule] == [
            f"job {old} of nobody (chem) on n3 would be cancelled",
            f"job {of_root} of root (ops) on n2 is left alone: root is an administrator",
            wording("service.dry_run.would_cancel", would=1, running=2, where="elastic", most=3),
            wording("service.dry_run.only_younger"),
        ]
        # somebody takes the partition away from under it
        changed = sandbox.client().run("scontrol", "update", "PartitionName=batch", "PriorityTier=1")
        assert changed.code == 0, changed.err
    refused = bftd(open_folder / "with", sandbox)
    names = {"name": "elastic", "name2": "elastic", "name3": "elastic", "other": "batch", "other2": "batch"}
    told = wording("slurm_plugin.preemptible.no_lower_tier", tier=1, options=1, **names)
    assert (refused.returncode, refused.stderr) == (2, f"bftd: {told}\n")
    sandbox.client().run("scontrol", "update", "PartitionName=batch", "PriorityTier=10")

    # a user writes what he likes into a comment
    forged = salloc(sandbox, "nobody", "n1", "chem", "--comment=bft 12 n1.4 @beef0123")
    refused = bftd(open_folder / "with", sandbox, "--take-over")
    told = wording("service.other_daemons.left_alone", word="beef0123", jobs=f"job {forged} of nobody")
    assert (refused.returncode, refused.stderr) == (2, f"bftd: {told}\n")
    with daemon(open_folder / "without", sandbox, "root", operator=False) as client:
        until("it is named", lambda: forged in orphan_jobs(client), logs)
        assert client.status()["hold"] is None
        assert not client.status()["alarms"]
    # the pilots of another site's daemon, which has this partition too
    sandbox.client().cancel([of_root])
    until("a node is free", lambda: not runs(of_root), logs)
    theirs = salloc(sandbox, "games", "n2", "chem", "--comment=bft 13 n2.5 @beef0123")
    with daemon(open_folder / "with", sandbox, "root", operator=True) as client:

        def holds() -> bool:
            return bool(says(client.status()["hold"] or "", "core.sentences.foreign_pilots", identity="beef0123"))

        until("nothing grows", holds, logs)
        assert len(client.status()["alarms"]) == 1
        assert runs(theirs)
        assert runs(forged)
    taken = bftd(open_folder / "with", sandbox, "--take-over")
    jobs = f"jobs {', '.join(sorted([forged, theirs]))} of games, nobody"
    assert taken.stdout == wording("service.other_daemons.taken_over", word="beef0123", jobs=jobs) + "\n"
    with daemon(open_folder / "with", sandbox, "root", operator=True) as client:
        until("it is named", lambda: theirs in orphan_jobs(client), logs)
        assert client.status()["hold"] is None
        assert not client.status()["alarms"]


def bftd(folder: Path, sandbox: Sandbox, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the daemon's command, which is expected to end, with the configuration of `folder`."""
    argv = [sys.executable, "-m", "bftd.daemon.process", "--config", str(folder / "bftd.toml"), *options]
    env = sandbox.env() | {"PYTHONPATH": program.python_path()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
