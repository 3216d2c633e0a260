"""What the tests of the packages need of this machine, and the packages themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def lacking(reason: str) -> NoReturn:
    """Skips a test; where everything is required, that is a failure."""
    if os.environ.get("BFTD_REQUIRE_ALL") or os.environ.get("CI"):
        pytest.fail(f"{reason}; `make test` installs what is missing", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def need() -> Callable[..., None]:
    """Skips a test where a command is missing; where everything is required, that is a failure."""

    def check(*commands: str, root: bool = False) -> None:
        if root and os.geteuid() != 0:
            pytest.skip("must be root to make a system of its own")
        for command in commands:
            if shutil.which(command, path=_PATH) is None:
                lacking(f"{command} is not installed")

    return check


@pytest.fixture(scope="session")
def packages(need: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Debian packages of this very tree: bftd and bftd-slurm-plugins."""
    need("dpkg-buildpackage", "dh", root=True)
    build = tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [str(ROOT / "tools/package/build.sh"), "deb"],
        # Nobody downloads these: the time for compressing them is saved.
        env={**os.environ, "BUILD_DIR": str(build), "DPKG_DEB_COMPRESSOR_TYPE": "none"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    if "is its package index within reach" in done.stderr:
        lacking("pip cannot reach its package index")
    assert done.returncode == 0, done.stderr
    plugins, main = sorted(build.glob("deb/*.deb"))
    return main, plugins
