"""What the tests of the plug-ins share: the compiled SPANK plug-in, and an ordinary user of the cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.sandbox.cluster import release_of
from tests import program

CHECKOUT = Path(__file__).parents[2]
# `nobody` on every Linux; any uid that is neither root's nor the cluster's would do.
NOBODY = 65534
# No command takes so long, however busy the machine is.
HUNG_S = 240.0

# Imports first: the user may be unable to read the Python that root has installed.
_AS_USER = """
import os, sys
import bftd.cli.main as cli, bftd.cli.jobs.submit, bftd.cli.admin.doctor, bftd.doctor.doctor, bftd.api_client
import bftd.base.tables, encodings.idna
import elastic.options.job_script, elastic.options.elastic_option, slurm_plugin.clients.client
uid = int(sys.argv[1])
if uid != os.getuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
sys.argv = ["bft", *sys.argv[2:]]
cli.main()
"""


def slurms_release() -> tuple[int, int]:
    """The release of the Slurm under test."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
    return release_of(Path(shutil.which("slurmctld", path=path) or "slurmctld"))


def is_newer_slurm() -> bool:
    """Whether the Slurm under test is of a release after 22.05, some of whose refusals are others."""
    return slurms_release() > (22, 5)


def require_compiled() -> None:
    """Compile the SPANK plug-in; where Slurm's header or a compiler is missing, skip with that reason."""
    done = subprocess.run(["make", "--silent", "plugins"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["make plugins failed"])[0]
    if "no slurm/spank.h" in reason and not (os.environ.get("BFTD_REQUIRE_ALL") or os.environ.get("CI")):
        pytest.skip(reason)
    pytest.fail(done.stderr, pytrace=False)


@contextmanager
def another_driver(site: SandboxSite, driver: Path) -> Iterator[None]:
    """Elastic jobs of the block run `driver`."""

    def changed(text: str) -> str:
        return text.replace(text.split('driver = "')[1].split('"')[0], str(driver))

    with another_lua(site, changed):
        yield


@contextmanager
def another_lua(site: SandboxSite, change: Callable[[str], str]) -> Iterator[None]:
    """The controller has another job_submit.lua during the block."""
    lua = site.root / "job_submit.lua"
    before = lua.read_text()
    _make_newer(lua, change(before))
    try:
        yield
    finally:
        _make_newer(lua, before)


def _make_newer(path: Path, text: str) -> None:
    # slurmctld takes a file for unchanged that is not newer, in whole seconds, than the one that it has read.
    later_s = max(time.time(), path.stat().st_mtime) + 2
    path.write_text(text)
    os.utime(path, (later_s, later_s))


@dataclass(frozen=True)
class User:
    """Somebody without privileges: `nobody` where the tests run as root, else who runs them."""

    uid: int
    home: Path
    env: dict[str, str]

    @classmethod
    def make(cls, home: Path, env: dict[str, str]) -> User:
        """Make the user's home, which goes with the folder that it is in."""
        uid = NOBODY if os.getuid() == 0 else os.getuid()
        home.mkdir()
        shutil.chown(home, uid)
        names = {
            "HOME": str(home),
            "BFT_STATE_DIR": str(home / "states"),
            "USER": "nobody" if uid == NOBODY else env.get("USER", str(uid)),
        }
        return cls(uid, home, {**env, **names})

    def run(
        self, *argv: str, env: dict[str, str] | None = None, timeout_s: float = HUNG_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's as this user, at home."""
        switch = {} if self.uid == os.getuid() else {"user": self.uid, "group": self.uid, "extra_groups": []}
        return subprocess.run(
            argv,
            cwd=self.home,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            **switch,  # type: ignore[call-overload]
        )

    def bft(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `bft` as this user, at home."""
        return subprocess.run(
            [sys.executable, "-c", _AS_USER, str(self.uid), *words],
            cwd=self.home,
            env={**self.env, "PYTHONPATH": program.python_path()},
            capture_output=True,
            text=True,
            timeout=HUNG_S,
            check=False,
        )
