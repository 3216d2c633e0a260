"""The version of torch, and the name of its device, under a given Python."""

from __future__ import annotations

import os
import subprocess

from sizing.base.errors import UsageError
from sizing.model import launch

_ASK = """
import importlib.metadata as m, sys
try:
    print(m.version("torch"))
except m.PackageNotFoundError:
    sys.exit(3)
if sys.argv[1] != "cpu":
    import torch
    print(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
"""
_WAITS_S = 60.0


def torch_of(python: str = "", device: str = "auto") -> tuple[str, str]:
    """Return the version of torch, and the driver's name of the device that "auto", "cpu" or "cuda" means.

    They are those of the Python that profiles are made under. Raises UsageError if no Python has torch.
    """
    for candidate in launch.pythons(python):
        try:
            said = subprocess.run(
                [candidate, "-c", _ASK, device],
                capture_output=True,
                text=True,
                timeout=_WAITS_S,
                stdin=subprocess.DEVNULL,
                env=os.environ,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            version, *name = said.stdout.split("\n")
            return version.strip(), (name[0].strip() if name and name[0] else "") or "cpu"
    raise UsageError("no Python with torch was found: name one with --python /path/to/python")
