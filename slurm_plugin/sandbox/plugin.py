"""The path of the compiled SPANK plug-in."""

from __future__ import annotations

from pathlib import Path

import slurm_plugin
from slurm_plugin.errors import SandboxError

NAME = "spank_bftd.so"


def compiled() -> Path:
    """Return the plug-in that `make plugins` compiles; raise SandboxError if it is missing."""
    plugin = Path(slurm_plugin.__file__).parents[1] / "build" / "plugins" / NAME
    if not plugin.is_file():
        raise SandboxError(f"{plugin} is not there: compile it with `make plugins`")
    return plugin
