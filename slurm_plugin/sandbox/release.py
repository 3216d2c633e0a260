"""Differences between releases of Slurm that matter to a private cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from slurm_plugin.errors import SandboxError

Release = tuple[int, int]

# Newer slurmds use the machine's cgroups, whatever the plug-ins, unless they are told not to.
_CGROUPS_CAN_BE_DISABLED = (24, 5)


def release_of(slurmctld: Path) -> Release:
    """Return the release of a controller, as in (22, 5)."""
    answer = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", answer)
    if found is None:
        raise SandboxError(f"{slurmctld} -V shows no release, but {answer.strip()!r}: reinstall Slurm")
    return int(found[1]), int(found[2])


def cgroup_conf(release: Release) -> str:
    """Write cgroup.conf so that Slurm leaves the machine's cgroups alone; "" for a release that does so by default."""
    return "CgroupPlugin=disabled\n" if release >= _CGROUPS_CAN_BE_DISABLED else ""
