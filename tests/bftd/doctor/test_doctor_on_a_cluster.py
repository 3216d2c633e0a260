"""`bft doctor` on a real cluster, for its owner and for an ordinary user: nothing fails, until something is broken."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.sandbox import processes
from tests import program
from tests.slurm_plugin.plugins import User, require_compiled
from tests.support.messages import says
from tests.support.programs import suspended
from tests.support.waiting import until

pytestmark = pytest.mark.cluster


class Seen(NamedTuple):
    """Findings of the command: its exit code, and level and text of each check."""

    code: int
    levels: dict[str, str]
    texts: dict[str, str]

    def named(self, level: str) -> set[str]:
        return {name for name, seen in self.levels.items() if seen == level}


@pytest.fixture(scope="module")
def site() -> Iterator[SandboxSite]:
    """A cluster with all that a site has; its Slurm commands wait for two seconds at most."""
    require_compiled()
    with SandboxSite({"slurm": {"timeout_s": 2.0}}, nodes=2, tuned=True, munge=True, plugins=True) as site:
        site.start_daemon()
        yield site


@pytest.fixture(scope="module")
def user(site: SandboxSite) -> User:
    """Somebody without privileges."""
    return User.make(site.root / "home", site.env())


def seen(done: subprocess.CompletedProcess[str]) -> Seen:
    assert done.stderr == ""
    checks = json.loads(done.stdout)["checks"]
    return Seen(done.returncode, *({check["name"]: check[key] for check in checks} for key in ("level", "text")))


def own(site: SandboxSite) -> Seen:
    return seen(site.bft("doctor", "--json"))


def test_nothing_fails_and_nothing_is_unknown_where_nothing_is_wrong(site: SandboxSite) -> None:
    found = own(site)
    assert (found.code, found.named("failure"), found.named("unknown")) == (0, set(), set()), found.texts
    assert found.named("warning") <= {"training Python"}, found.texts


def test_nothing_fails_for_an_ordinary_user(site: SandboxSite, user: User) -> None:
    found = seen(user.bft("doctor", "--json"))
    # where every Python that others can run lacks parts, that is said
    failures = set() if program.python() else {"training Python"}
    assert (found.code, found.named("failure")) == (bool(failures), failures), found.texts
    assert found.levels["driver partition"] == found.levels["munge"] == "ok"
    assert found.named("unknown") <= {"slurmctld's clock", "job_submit.lua"}


def test_a_daemon_that_is_away_is_told_and_slurm_is_checked_all_the_same(site: SandboxSite) -> None:
    site.stop_daemon()
    try:
        found = own(site)
        assert (found.code, found.named("failure")) == (1, {"daemon"}), found.texts
        assert found.levels["driver partition"] == "ok"
    finally:
        site.start_daemon()


def test_a_controller_that_hangs_is_told_and_what_it_would_tell_is_unknown(site: SandboxSite) -> None:
    with stopped(site, "slurmctld"):
        found = own(site)
    assert found.code == 1
    assert "slurmctld" in found.named("failure")
    assert says(found.texts["slurmctld"], "slurm_plugin.client.no_answer", command="scontrol")
    unknown = {"slurmctld's clock", "site settings", "SPANK plug-in", "job_submit.lua", "driver partition"}
    assert found.named("unknown") >= unknown


def test_a_daemon_that_hangs_is_told(site: SandboxSite) -> None:
    assert site.daemon_pid is not None
    with suspended([site.daemon_pid]):
        found = own(site)
    assert found.named("failure") == {"daemon"}, found.texts
    assert says(found.texts["daemon"], "client.api_client.hangs")


def test_a_munged_that_hangs_is_told(site: SandboxSite) -> None:
    with stopped(site, "munged"):
        found = own(site)
    # the daemon, too, reads nothing meanwhile
    assert found.named("failure") - {"daemon's state"} == {"munge", "slurmctld"}, found.texts


def test_a_driver_partition_that_is_down_is_told(site: SandboxSite) -> None:
    with partition(site, "bft-driver", "State=DOWN", "State=UP"):
        found = own(site)
    assert found.named("failure") == {"driver partition", "site settings"}, found.texts


def test_a_driver_partition_that_is_closed_to_a_user_is_told_to_that_user(site: SandboxSite, user: User) -> None:
    if os.getuid() != 0:
        pytest.skip("acting as two users needs root")
    with partition(site, "bft-driver", "AllowGroups=root", "AllowGroups=ALL"):
        found = seen(user.bft("doctor", "--json"))
        assert found.levels["driver partition"] == "failure", found.texts
        assert own(site).levels["driver partition"] == "ok"


def test_service_nodes_that_are_full_are_a_warning(site: SandboxSite) -> None:
    words = ("-p", "bft-driver", "-n256", "-t", "60", "-o", "/dev/null", "--parsable", "--wrap", "sleep 3600")
    job = site.slurm("sbatch", *words)
    try:
        until("the job runs", lambda: site.slurm("squeue", "-h", "-j", job, "-o", "%t") == "R")
        found = own(site)
        assert (found.code, found.levels["driver partition"]) == (0, "warning"), found.texts
    finally:
        site.slurm("scancel", job)
        until("the job is gone", lambda: not site.slurm("squeue", "-h", "-j", job))


def test_a_setting_that_must_change_is_told(site: SandboxSite) -> None:
    with partition(site, "elastic", "PriorityTier=20", "PriorityTier=1"):
        found = own(site)
    assert "site settings" in found.named("failure"), found.texts
    assert "PriorityTier" in found.texts["site settings"]


@pytest.mark.parametrize(
    ("file", "change", "name", "level"),
    [
        ("bftd.lua", lambda text: text + "-- of last year\n", "job_submit.lua", "warning"),
        ("job_submit.lua", lambda text: "return slurm.SUCCESS\n", "job_submit.lua", "warning"),
        (
            "plugstack.conf",
            lambda text: text.replace("spank_bftd.so", "gone/spank_bftd.so"),
            "SPANK plug-in",
            "failure",
        ),
    ],
)
def test_a_plug_in_that_is_not_as_it_should_be_is_told(
    site: SandboxSite, file: str, change: Callable[[str], str], name: str, level: str
) -> None:
    path: Path = site.root / file
    before = path.read_text()
    assert change(before) != before
    path.write_text(change(before))
    try:
        found = own(site)
        assert found.levels[name] == level, found.texts
    finally:
        path.write_text(before)


@contextmanager
def stopped(site: SandboxSite, program: str) -> Iterator[None]:
    """The cluster's daemons of that name hang during the block."""
    pids = [
        found.pid
        for found in processes.of_root(site.root)
        if Path(f"/proc/{found.pid}/comm").read_text() == f"{program}\n"
    ]
    assert pids
    with suspended(pids):
        yield
    until("the cluster answers", lambda: site.cluster.client().run("scontrol", "ping").code == 0)
    until("the daemon has read it", lambda: own(site).levels["daemon's state"] == "ok")


@contextmanager
def partition(site: SandboxSite, name: str, change: str, before: str) -> Iterator[None]:
    """The partition has another setting during the block."""
    site.slurm("scontrol", "update", f"PartitionName={name}", change)
    until("the daemon is well", lambda: own(site).levels["daemon's state"] == "ok")
    try:
        yield
    finally:
        site.slurm("scontrol", "update", f"PartitionName={name}", before)
