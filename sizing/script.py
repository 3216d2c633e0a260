"""Putting #SBATCH lines into a user's batch script: nothing of his is changed, line endings included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sizing.emit import Line
from sizing.errors import UsageError

# Options that settle the same thing: who has written one of them has decided.
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
class Kept:
    """An option of the script that settles what a line would have: it stays as it is."""

    option: str
    value: str | None
    instead: Line

    @property
    def differs(self) -> bool:
        """Whether the script asks for something else than the line."""
        return (self.option, self.value) != (self.instead.option, self.instead.value)

    def sentence(self, whose: str = "plan") -> str:
        """What a user is told of it; `whose` lines they are that would have it otherwise."""
        mine = f"--{self.option}" if self.value is None else f"--{self.option}={self.value}"
        if not self.differs:
            return f"{mine} stands in the script already"
        return f"{mine} is the script's and stays; the {whose} would have --{self.instead.option}={self.instead.value}"


def agree(lines: Sequence[Line], given: Mapping[str, str | None]) -> tuple[tuple[Line, ...], tuple[Kept, ...]]:
    """The lines that the script lacks, and what it has instead of the others. `given` is its options by long name."""
    missing, kept = [], []
    for line in lines:
        same = next((names for names in _SAME if line.option in names), frozenset({line.option}))
        # the line's own name first: of two options it is the one to compare with
        mine = next((name for name in (line.option, *sorted(same)) if name in given), None)
        if mine is None:
            missing.append(line)
        else:
            kept.append(Kept(mine, given[mine], line))
    return tuple(missing), tuple(kept)


def insert(source: str, lines: Sequence[str]) -> str:
    """The script with lines behind its last #SBATCH line, or behind its first line where it has none.

    Raises UsageError where it is no batch script: sbatch wants a first line with #!.
    """
    if not source.startswith("#!"):
        raise UsageError("the first line of a batch script must name its shell, for example #!/bin/bash")
    if not lines:
        return source
    ending = found[0] if (found := _ENDING.search(source)) else "\n"
    parts = _lines(source)
    at = _place(parts)
    new = [line + ending for line in lines]
    if not parts[at - 1].endswith("\n"):  # the script's last line, and it stays without an end
        parts[at - 1] += ending
        new[-1] = new[-1].removesuffix(ending)
    return "".join([*parts[:at], *new, *parts[at:]])


def _lines(source: str) -> list[str]:
    """Lines with their endings. Only line feeds end one: a form feed in a comment does not."""
    parts = source.split("\n")
    whole = [part + "\n" for part in parts[:-1]]
    return [*whole, parts[-1]] if parts[-1] else whole


def _place(parts: Sequence[str]) -> int:
    """Before which line the new ones go: sbatch looks for options up to the first line of code."""
    at = 1
    for index, line in enumerate(parts):
        if index and line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            at = index + 1
    return at
