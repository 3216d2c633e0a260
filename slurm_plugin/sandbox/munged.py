"""A private munged with its own key, run as its caller's user: no other credentials are valid there."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_plugin.errors import SandboxError, SlurmMissing

_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_KEY_BYTES = 128
_UP_LIMIT_S = 20.0


def socket_of(root: Path) -> Path:
    """Return the socket of the munged in the folder `root`."""
    return root / "munge" / "socket"


def start(root: Path, environ: Mapping[str, str] | None = None) -> int:
    """Start a munged in `root`/munge, wait until it answers, and return its pid; the caller ends it.

    Only their owners may be able to write into `root` and the folders above it.
    """
    program = shutil.which("munged", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_SBIN)))
    if program is None:
        raise SlurmMissing("munged not found: install it, on Debian and Ubuntu with `apt-get install munge`")
    folder = root / "munge"
    folder.mkdir()
    folder.chmod(0o755)  # its socket is for all users of the host
    with open(os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as key:
        key.write(secrets.token_bytes(_KEY_BYTES))
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    started = folder / "start.log"
    with started.open("wb") as output:
        done = subprocess.run(
            # --force: it may run as its caller instead of a dedicated user.
            [program, "--force", *(f"--{option}={folder / name}" for option, name in files.items())],
            env=None if environ is None else dict(environ),
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=_UP_LIMIT_S,
            check=False,
        )
    if done.returncode:
        said = started.read_text(errors="replace").strip().splitlines()
        raise SandboxError(f"munged did not start: {said[-1] if said else 'it said nothing'}")
    return int((folder / "pid").read_text())
