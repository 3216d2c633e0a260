"""A user who goes round the daemon, on a real cluster: named, and cancelled only where Slurm and the site allow it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bftd.errors import BftError
from bftd.http.client import Client
from slurm_plugin.sandbox import Sandbox

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user"),
]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
# Imports first: the user may be unable to read what root has installed.
AS_USER = """
import encodings.idna, os, sys
from bftd import daemon
uid = int(sys.argv.pop(1))
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
daemon.main()
"""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """Three compute nodes."""
    with Sandbox(nodes=3, service_nodes=1) as cluster:
        yield cluster


def as_user(name: str) -> dict[str, Any]:
    """What makes a child process run as another user."""
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


@contextmanager
def daemon(folder: Path, sandbox: Sandbox, user: str, operator: bool) -> Iterator[Client]:
    """A daemon that runs as `user`; its log is folder/log."""
    folder.mkdir()
    config, entry = folder / "bftd.toml", pwd.getpwnam(user)
    config.write_text(
        f'[slurm]\nconf = "{sandbox.conf}"\npoll_s = 0.5\noperator = {str(operator).lower()}\n'
        f'[api]\nsocket = "{folder}/socket"\n[ledger]\npath = "{folder}/ledger"\n'
    )
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    argv = [sys.executable, "-c", AS_USER, str(entry.pw_uid), "--config", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=sandbox.env() | {"PYTHONPATH": str(ROOT)}, stderr=log)
    client = Client(str(folder / "socket"))
    try:
        until(lambda: process.poll() is not None or answers(client))
        assert process.poll() is None, (folder / "log").read_text()
        yield client
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(client: Client) -> bool:
    """Whether the daemon serves."""
    try:
        client.status()
    except BftError:
        return False
    return True


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def salloc(sandbox: Sandbox, user: str, node: str, account: str) -> str:
    """The id of an allocation that a user makes himself."""
    argv = [sandbox.client().path("salloc"), "--immediate=1", "--no-shell", "--partition=elastic", "-N1", "-t5"]
    made = subprocess.run(
        [*argv, f"--nodelist={node}", f"--account={account}"],
        env=sandbox.client().environ(), capture_output=True, text=True, timeout=PATIENCE_S, **as_user(user),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stderr.split("job allocation ")[1].split()[0]


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that other users reach, unlike tmp_path's own parents."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001 and folder.owner() == "root":
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def test_an_allocation_round_the_daemon_is_named_and_cancelled_only_with_operator_rights(
    open_folder: Path, sandbox: Sandbox
) -> None:
    job_id = salloc(sandbox, "nobody", "n3", "chem")
    of_root = salloc(sandbox, "root", "n2", "ops")

    def strays(client: Client) -> dict[str, dict[str, Any]]:
        return {stray["job_id"]: stray for stray in client.status()["strays"]}

    def runs(id_: str) -> bool:
        job = sandbox.client().job(id_)
        return job is not None and job.state == "RUNNING"

    with daemon(open_folder / "without", sandbox, "root", operator=False) as client:
        until(lambda: len(strays(client)) == 2)
        shown = strays(client)[job_id]
        assert (shown["user"], shown["account"], shown["nodes"]) == ("nobody", "chem", ["n3"])
        assert 0 < shown["since_s"] <= time.time()
        assert not shown["cancelled"]
        (node,) = (node for node in client.status()["nodes"] if node["name"] == "n3")
        assert (node["in_pool"], node["why"]) == (
            False,
            f"runs job {job_id} of this partition, which no lease stands behind",
        )
        events = client.request("GET", "/v1/events")["events"]
        assert [event["data"]["job_id"] for event in events if event["kind"] == "stray"].count(job_id) == 1

    # the site says that it gave the rights, but in Slurm this user has none
    with daemon(open_folder / "refused", sandbox, "games", operator=True) as client:
        until(lambda: strays(client).get(job_id, {}).get("cancelled", False))
        log = open_folder / "refused" / "log"
        until(lambda: "scancel failed" in log.read_text())
        assert runs(job_id)
        assert log.read_text().count("cancelling job") == 1

    with daemon(open_folder / "with", sandbox, "root", operator=True) as client:
        until(lambda: not runs(job_id))
        until(lambda: set(strays(client)) == {of_root})
        assert not strays(client)[of_root]["cancelled"], "a job of the administrators' own"
