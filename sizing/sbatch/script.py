"""Insertion of #SBATCH lines into a user's batch script; all other lines and the line endings stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.sbatch.lines import SbatchLine

# Options that settle the same thing: a script with one of them has decided.
_SAME: tuple[frozenset[str], ...] = (
    frozenset({"partition"}),
    frozenset({"nodes"}),
    frozenset({"ntasks", "ntasks-per-node", "ntasks-per-gpu"}),
    frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"constraint"}),
)
_ENDING = re.compile(r"\r\n|\n")


@dataclass(frozen=True, slots=True)
class SettledOption:
    """An option of the script that settles the same as a line: it stays as it is."""

    option: str
    value: str | None
    instead: SbatchLine

    @property
    def differs(self) -> bool:
        """Whether the script asks for something else than the line."""
        return (self.option, self.value) != (self.instead.option, self.instead.value)

    def sentence(self, whose: str = "plan") -> str:
        """Return the sentence on it for the user; `whose` names the owner of the lines that would differ."""
        mine = f"--{self.option}" if self.value is None else f"--{self.option}={self.value}"
        if not self.differs:
            return f"{mine} stands in the script already"
        return f"{mine} is the script's and stays; the {whose} would have --{self.instead.option}={self.instead.value}"


def agree(
    lines: Sequence[SbatchLine], given: Mapping[str, str | None]
) -> tuple[tuple[SbatchLine, ...], tuple[SettledOption, ...]]:
    """Return the lines that the script lacks, and its options in place of others. `given` has them by long name."""
    missing, kept = [], []
    for line in lines:
        same = next((names for names in _SAME if line.option in names), frozenset({line.option}))
        # the line's own name first: of two options it is the one to compare with
        mine = next((name for name in (line.option, *sorted(same)) if name in given), None)
        if mine is None:
            missing.append(line)
        else:
            kept.append(SettledOption(mine, given[mine], line))
    return tuple(missing), tuple(kept)


def insert(source: str, lines: Sequence[str]) -> str:
    """Return the script with lines after its last #SBATCH line, or after its first line if it has none.

    Raises UsageError if it is no batch script: sbatch wants a first line with #!.
    """
    if not source.startswith("#!"):
        raise UsageError("the first line of a batch script must name its shell, for example #!/bin/bash")
    if not lines:
        return source
    ending = found[0] if (found := _ENDING.search(source)) else "\n"
    parts = _lines(source)
    at = _place(parts)
    new = [line + ending for line in lines]
    if not parts[at - 1].endswith("\n"):  # the script's last line had no line ending; the new last line keeps it so
        parts[at - 1] += ending
        new[-1] = new[-1].removesuffix(ending)
    return "".join([*parts[:at], *new, *parts[at:]])


def _lines(source: str) -> list[str]:
    """Return lines with their endings. Only line feeds end one: a form feed in a comment does not."""
    parts = source.split("\n")
    whole = [part + "\n" for part in parts[:-1]]
    return [*whole, parts[-1]] if parts[-1] else whole


def _place(parts: Sequence[str]) -> int:
    """Return the place of the new lines: sbatch looks for options up to the first line of code."""
    at = 1
    for index, line in enumerate(parts):
        if index and line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            at = index + 1
    return at
