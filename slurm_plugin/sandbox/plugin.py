"""Where the compiled SPANK plug-in is."""

from __future__ import annotations

from pathlib import Path

import slurm_plugin
from slurm_plugin.errors import SandboxError

NAME = "spank_bftd.so"


def compiled() -> Path:
    """The plug-in as `make plugins` leaves it; raises SandboxError when that has not been done."""
    plugin = Path(slurm_plugin.__file__).parents[1] / "build" / "plugins" / NAME
    if not plugin.is_file():
        raise SandboxError(f"{plugin} is not there: compile it with `make plugins`")
    return plugin
