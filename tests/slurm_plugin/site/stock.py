"""A private cluster with Slurm's own settings."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_plugin.sandbox import Sandbox

CHECKOUT = Path(__file__).parents[3]
_OURS = (
    "PreemptType=",
    "PreemptMode=",
    "JobSubmitPlugins=",
    "ReturnToService=",
    "PartitionName=elastic",
    "PartitionName=bft-driver",
)


def stock_conf(text: str) -> str:
    """Take out of the sandbox's slurm.conf what bftd needs, so that Slurm's defaults hold."""
    lines = [line for line in text.splitlines() if not line.startswith(_OURS)]
    plain = [re.sub(r" (PriorityTier|PreemptMode|OverSubscribe)=\S+", "", line) for line in lines]
    return "\n".join(plain) + "\n"


class StockCluster(Sandbox):
    """Slurm's own settings, changed by `edit`; `files` are written beside slurm.conf."""

    def __init__(
        self, root: Path, edit: Callable[[str], str] = lambda text: text, files: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(nodes=2, root=root)
        self._edit = edit
        self._files = files or {}

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        for name in ("job_submit.lua", "bftd.lua"):
            (self.root / name).unlink(missing_ok=True)
        self.conf.write_text(self._edit(stock_conf(self.conf.read_text())))
        for name, text in self._files.items():
            (self.root / name).write_text(text)
        if "job_submit.lua" in self._files:
            shutil.copyfile(CHECKOUT / "slurm_plugin" / "plugins" / "lua" / "bftd.lua", self.root / "bftd.lua")
