"""The part of a node that a trainer asks for, instead of the whole, as `share=` of `--elastic` gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic.base.errors import UsageError

_FORM = re.compile(r"([0-9]{1,9}):([0-9]{1,9})([MGT])")
_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}
NEVER, PROFILE = "no", "profile"


@dataclass(frozen=True)
class NodeShare:
    """CPUs and memory of each node. Without numbers, the profiled ones are used.

    `never` means whole nodes in any case; `asked` is whether the user gave `share=` at all.
    """

    cpus: int = 0
    memory_bytes: int = 0
    never: bool = False
    asked: bool = True

    @classmethod
    def parse(cls, value: str | None) -> NodeShare:
        """Parse CPUS:MEMORY ("4:16G", with Slurm's units: powers of two), "profile" or "no"; raises UsageError."""
        if value is None:
            return cls(asked=False)
        if value in (NEVER, PROFILE):
            return cls(never=value == NEVER)
        match = _FORM.fullmatch(value)
        if match is None or not int(match[1]) or not int(match[2]):
            raise UsageError(
                f"--elastic: share={value}: give CPUs and memory of a node such as share=4:16G, share=profile for "
                "those that bft size cpu found, or share=no for whole nodes"
            )
        return cls(int(match[1]), int(match[2]) * _UNITS[match[3]])

    def format(self) -> str:
        """Return the share in the form that `parse` reads, "" if the user gave none."""
        if self.cpus:
            unit = next(unit for unit in "TGM" if self.memory_bytes % _UNITS[unit] == 0)
            return f"{self.cpus}:{self.memory_bytes // _UNITS[unit]}{unit}"
        if not self.asked:
            return ""
        return NEVER if self.never else PROFILE
