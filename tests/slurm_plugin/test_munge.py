"""A private cluster that authenticates by a munged of its own."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bftd.credentials import munge
from slurm_plugin.errors import SandboxError, SlurmMissing
from slurm_plugin.sandbox import Sandbox, munged
from tests.support.messages import pattern
from tests.support.programs import run_bft

pytestmark = pytest.mark.cluster
NOBODY = 65534


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_cluster_has_a_key_of_its_own_which_its_owner_alone_reads_and_all_of_it_goes_with_it() -> None:
    with Sandbox(nodes=1, munge=True, tuned=True) as cluster:
        root = cluster.root
        assert mode(root / "munge" / "key") == 0o400
        assert mode(root / "state") == 0o700
        process = psutil.Process(int((root / "munge" / "pid").read_text()))
        assert process.name() == "munged"
        opened = munge.decode(munge.encode(b"x", socket=cluster.munge_socket), socket=cluster.munge_socket)
        assert opened.uid == os.getuid()
        assert cluster.env()["BFTD_MUNGE_SOCKET"] == cluster.munge_socket
        assert Sandbox.attach(root).munge_socket == cluster.munge_socket
        job = cluster.client().submit(["--hold", "--output=/dev/null"], "#!/bin/sh\ntrue\n")
        told = subprocess.run(
            ["scontrol", "show", "config"], env=cluster.env(), capture_output=True, text=True, check=True
        ).stdout
        assert "auth/munge" in told
        if os.getuid() == 0:
            refused = subprocess.run(
                ["scancel", job], env=cluster.env(), user=NOBODY, group=NOBODY, extra_groups=[],
                cwd="/", capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert "denied" in refused.stderr
        # Whom Slurm does not know by this key it does not answer.
        other = cluster.env() | {"SLURM_CONF": str(_with_another_munged(root))}
        stranger = subprocess.run(["squeue"], env=other, capture_output=True, text=True, timeout=300, check=False)
        assert stranger.returncode != 0
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert not root.exists()


def _with_another_munged(root: Path) -> Path:
    """The cluster's configuration as on a host whose munged has another key; it goes with the cluster."""
    other = root / "other"
    other.mkdir()
    munged.start(other, os.environ | {"BFT_SANDBOX_ROOT": str(root)})
    conf = other / "slurm.conf"
    conf.write_text((root / "slurm.conf").read_text().replace(f"{root}/munge/", f"{other}/munge/"))
    return conf


def test_without_munge_there_is_no_munged() -> None:
    assert "AuthType=auth/none" in _conf(munge=False)
    assert "AuthType=auth/munge\nAuthInfo=socket=/x/munge/socket\nCredType=cred/munge\n" in _conf(munge=True)


def _conf(munge: bool) -> str:
    from slurm_plugin.sandbox.config import ClusterShape, slurm_conf

    return slurm_conf(
        ClusterShape(nodes=1, munge=munge), Path("/x"), "here", pwd.getpwuid(os.getuid()).pw_name, [1, 2, 3]
    )


def test_a_munged_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(munged, "_KEY_BYTES", 1)
    with pytest.raises(SandboxError, match=pattern("slurm_plugin.munged.not_started", said="") + ".*[Kk]ey"):
        munged.start(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(munged, "_SBIN", ())
    with pytest.raises(SlurmMissing, match=pattern("slurm_plugin.munged.not_found")):
        munged.start(tmp_path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A socket has a path of 107 letters at most: too few for pytest's own folders where tests run side by side."""
    with tempfile.TemporaryDirectory(prefix="bft-") as folder:
        yield Path(folder)


def test_bft_sandbox_starts_a_cluster_with_munge(short_path: Path) -> None:
    root = short_path / "s"
    done = run_bft("sandbox", "up", "--nodes=1", "--munge", f"--root={root}")
    try:
        assert done.returncode == 0, done.stderr
        assert json.loads((root / "sandbox.json").read_text())["munge"] is True
    finally:
        run_bft("sandbox", "down", f"--root={root}").check_returncode()
    assert not root.exists()
