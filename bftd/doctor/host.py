"""Checks of this host: its programs, limits, disks and name. They need neither Slurm nor a daemon."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bftd import __version__
from bftd.base.format import size
from bftd.config.keys import Config
from bftd.doctor.check import Check
from elastic.store import catalogue

# A driver needs a few files and threads for each pilot; with fewer it cannot have a hundred.
_FILES_LEAST, _THREADS_LEAST = 2048, 1024
_FREE_LEAST_BYTES, _FREE_FEW_BYTES = 100 * 2**20, 2**30
# A Python of the user's may take long to start from a network file system.
_PYTHON_S = 10.0
_PYTHON_LEAST = (3, 10)
_ASKED = """
import json, sys
try:
    from importlib import metadata
except ImportError:
    metadata = None
found = {}
for name in ("torch", "horovod") if metadata else ():
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([sys.version_info[:3], found]))
"""


def programs() -> Iterator[Check]:
    """Check bft itself, and the Python that training scripts get."""
    yield Check("bft", "ok", f"{__version__} with Python {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")
    yield _training_python()


def _training_python() -> Check:
    name = "training Python"
    path = shutil.which("python3")
    if path is None:
        return Check(name, "warning", "no python3 on PATH: load its module or environment before you submit")
    try:
        asked = subprocess.run(
            [path, "-c", _ASKED], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_PYTHON_S, check=True
        )
        version, found = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Check(name, "failure", f"{path} does not run: {error}: load another module or environment")
    shown = f"python3 is {'.'.join(map(str, version))} ({path})"
    if tuple(version[:2]) < _PYTHON_LEAST:
        return Check(name, "warning", f"{shown}: scripts need Python 3.10 or newer, load its module or environment")
    if not found:
        return Check(name, "warning", f"{shown}, without torch and horovod: load their module or environment")
    return Check(name, "ok", f"{shown} with {', '.join(f'{package} {found[package]}' for package in found)}")


def limits() -> Iterator[Check]:
    """Check the limits of this process, which Slurm passes on to jobs unless slurm.conf says otherwise."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    threads, memory = resource.getrlimit(resource.RLIMIT_NPROC)[0], resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    few = []
    if 0 <= files < _FILES_LEAST:
        few.append(f"{files} open files are few for many pilots: raise the hard limit (ulimit -Hn)")
    if 0 <= threads < _THREADS_LEAST and os.geteuid():
        few.append(f"{threads} processes are few for many pilots: raise ulimit -u")
    if memory >= 0 and _has_infiniband():
        few.append(f"{size(memory)} of locked memory are few for InfiniBand: raise ulimit -l to unlimited")
    if few:
        yield Check("limits", "warning", "; ".join(few))
    else:
        shown = f"open files {_shown(files)}, processes {_shown(threads)}"
        yield Check("limits", "ok", f"{shown}, locked memory {size(memory) if memory >= 0 else 'unlimited'}")


def _has_infiniband() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False


def _shown(limit: int) -> str:
    return str(limit) if limit >= 0 else "unlimited"


def disks(settings: Config) -> Iterator[Check]:
    """Check the disks of this user's checkpoints and, on the daemon's host, of its ledger."""
    yield _disk("checkpoints", catalogue.root_of(os.environ), ours=True)
    ledger = Path(settings.ledger.path).parent
    if ledger.is_dir():
        yield _disk("ledger", ledger, ours=os.access(settings.ledger.path, os.W_OK))


def _disk(name: str, folder: Path, *, ours: bool) -> Check:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if ours and not os.access(there, os.W_OK):
        return Check(name, "failure", f"{there} cannot be written by you: change its owner, or set BFT_STATE_DIR")
    seen = os.statvfs(there)
    free = seen.f_bavail * seen.f_frsize
    shown = f"{size(free)} free for {folder}"
    if free < _FREE_LEAST_BYTES or (seen.f_files and not seen.f_favail):
        what = "no file more" if free >= _FREE_LEAST_BYTES else shown
        return Check(name, "failure", f"{what}: remove what is not needed (bft checkpoints ls)")
    if free < _FREE_FEW_BYTES:
        return Check(name, "warning", f"{shown}: remove what is not needed (bft checkpoints ls)")
    return Check(name, "ok", f"{shown} (quotas are not seen)")


def own_name() -> Iterator[Check]:
    """Check that this host's own name resolves."""
    name = socket.gethostname()
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        yield Check("host name", "failure", f"{name} does not resolve here: add it to DNS or /etc/hosts")
    else:
        yield Check("host name", "ok", f"{name} is {', '.join(sorted(found))}")
