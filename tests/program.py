"""The program where every user can read it, wherever the clone lies: for tests that act as another user."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
_PACKAGES = ("bftd", "elastic", "milp", "sizing", "slurm_plugin")
# Half of all files, which no trainer imports.
_NOT_IMPORTED = shutil.ignore_patterns("include", "tests", "cmake", "mypy*", "transformers", "lightning", "pip")
_FOLDER = "BFTD_TEST_PROGRAM"
"""The variable that names the folder of this run of tests, which its processes share."""


def begin() -> Path | None:
    """Name the folder in which `python_path` puts the program; None if the process that began this run has done so."""
    if _FOLDER in os.environ:
        return None
    folder = Path(tempfile.mkdtemp(prefix="bft-program-", dir="/tmp"))
    os.environ[_FOLDER] = str(folder)
    return folder


def reachable(path: str | Path) -> bool:
    """Whether every user may come to this file."""
    place = Path(path).resolve()
    return place.exists() and all(parent.stat().st_mode & 0o001 for parent in place.parents)


def python_path() -> str:
    """A PYTHONPATH with our packages, and all that this environment has beside them, that every user can read."""
    folder = Path(os.environ[_FOLDER])
    site = Path(sysconfig.get_path("purelib")).resolve()
    copy = folder / "site-packages"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (whole := folder / "whole").exists():
            for name in _PACKAGES:
                shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
            if not reachable(site):
                shutil.copytree(site, copy, copy_function=_link, ignore=_NOT_IMPORTED)
            whole.touch()
    return f"{folder}:{copy if copy.exists() else site}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def python() -> str | None:
    """A Python that every user can run with `python_path`; None where there is root's own alone."""
    own, systems = str(Path(sys.executable).resolve()), f"/usr/bin/python3.{sys.version_info.minor}"
    return next((path for path in (own, systems) if reachable(path) and _is_whole(path)), None)


def _is_whole(path: str) -> bool:
    """Whether it has all of the standard library, which Debian's python3-minimal lacks."""
    return subprocess.run([path, "-c", "import dataclasses"], capture_output=True, check=False).returncode == 0
