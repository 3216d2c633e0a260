"""The lines that `bft site config` prints for a private cluster, put into its slurm.conf as a person would."""

from __future__ import annotations

import re

from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite


def applied(text: str, printed: str) -> str:
    """Do to a slurm.conf what the printed lines say: replace or add settings, and extend partitions where told to."""
    lines = text.splitlines()
    partition = ""
    for line in printed.splitlines():
        if match := re.fullmatch(r"# in the line (PartitionName=\S+), set:", line):
            partition = match[1]
        elif line.startswith("#+ "):
            (index,) = (place for place, old in enumerate(lines) if old.startswith(f"{partition} "))
            for option in line.removeprefix("#+ ").split():
                key = option.split("=")[0]
                lines[index] = re.sub(rf" {key}=\S+", "", lines[index]) + f" {option}"
        elif line.startswith("PartitionName="):
            lines.append(line)
        elif line and not line.startswith("#"):
            key = line.split("=")[0]
            lines = [line, *(old for old in lines if not old.startswith(f"{key}="))]
    return "\n".join(lines) + "\n"


def follow(site: SandboxSite) -> list[str]:
    """Put the lines that `bft site config` prints for a site's slurm.conf there; return them without their comments.

    Raises BftError where the command fails.
    """
    site.write_config()
    done = site.bft("site", "config", "--file", "slurm.conf")
    if done.returncode:
        raise BftError(f"bft site config failed: {done.stderr.strip()}")
    site.cluster.conf.write_text(applied(site.cluster.conf.read_text(), done.stdout))
    site.slurm("scontrol", "reconfigure", timeout_s=60.0)
    return [line.removeprefix("#+ ") for line in done.stdout.splitlines() if line and not line.startswith("# ")]
