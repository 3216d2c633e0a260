"""A private cluster with Slurm's own settings, and how a person would apply the printed lines to it."""

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


class StockCluster(Sandbox):
    """Slurm's own settings, changed by `edit`; `files` are written beside slurm.conf."""

    def __init__(
        self, root: Path, edit: Callable[[str], str] = lambda text: text, files: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(nodes=2, root=root, tuned=False)
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
            shutil.copyfile(CHECKOUT / "slurm_plugin" / "lua" / "bftd.lua", self.root / "bftd.lua")
