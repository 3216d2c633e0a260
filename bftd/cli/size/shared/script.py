"""`bft size fit --into`: a copy of the user's batch script with the lines of a plan, shown first as a diff."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.cli.common import refuse_unwritable
from bftd.cli.jobs import sbatch_options
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from sizing.choice.fit import GpuPlan
    from sizing.sbatch.launchers import Launch
    from sizing.sbatch.lines import SbatchLine

_MOST_BYTES = 4 * 2**20  # sbatch accepts no larger script


@dataclass(frozen=True, slots=True)
class Script:
    """A user's batch script: its text, its options by their long names, and the commands in it that start processes."""

    path: Path
    text: str
    options: dict[str, str | None]
    launches: tuple[Launch, ...]

    @property
    def start(self) -> str:
        """The predicate of a sentence on how it starts processes."""
        return " or ".join(dict.fromkeys(launch.words for launch in self.launches))

    @property
    def launcher(self) -> str:
        """The launcher in it that starts all processes of a node from one task, "" if there is none."""
        return next((launch.program for launch in self.launches if launch.by_node), "")

    def tasks_per_node(self, nodes: int) -> int | None:
        """Return the script's tasks per node on so many nodes, as it says or as its launcher wants; None if unknown."""
        count = self._count("ntasks-per-node")
        if count is None and (tasks := self._count("ntasks")) is not None:
            return -(-tasks // (self._count("nodes") or nodes))
        return 1 if count is None and self.launcher else count

    def _count(self, option: str) -> int | None:
        from sizing.sbatch.launchers import literal

        return literal(self.options.get(option))

    def copy(self, infix: str = "gpus") -> Path:
        """Return the default path of the copy: job.sh becomes job.gpus.sh."""
        return self.path.with_name(f"{self.path.stem}.{infix}{self.path.suffix}")


def read(name: str) -> Script:
    """Read a batch script; raises UsageError if it is missing or no batch script."""
    from sizing.sbatch.launchers import launches

    path = Path(name)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the batch script") from None
    # invalid UTF-8 and carriage returns are preserved
    text = content.decode("utf-8", "surrogateescape")
    if not text.startswith("#!") or len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: no batch script: its first line must name its shell, for example #!/bin/bash")
    options = {option.name: option.value for option in sbatch_options.of_script(text)}
    return Script(path, text, options, launches(text, options))


def target(script: Script, output: str | None, *, overwrite: bool, infix: str = "gpus") -> Path:
    """Return the path of the copy; raises UsageError, before minutes of work, if it cannot be written."""
    path = script.copy(infix) if output is None else Path(output)
    _refuse_target(script, path, overwrite=overwrite)
    refuse_unwritable(path)
    return path


def with_lines(script: Script, plans: Sequence[GpuPlan]) -> tuple[str, list[str]]:
    """Return the script with the lines that it lacks, and sentences on those that it already has.

    They are those of the first of the `plans` that its launcher fills. Raises UsageError if there is none: the numbers
    of processes that a launcher is given do not change with the lines.
    """
    from sizing.sbatch.launchers import launches

    starts = launches(script.text, {})
    filled = [plan for plan in plans if any(each.fills(plan.nodes, plan.shape.per_node) for each in starts)]
    has_launcher = bool(starts[0].program)
    if not filled and has_launcher:
        raise UsageError(
            f"{script.path} {script.start}, and no plan that fits has so many GPUs: change its number of processes"
        )
    plan = filled[0] if has_launcher else plans[0]
    lines = plan.lines(script.tasks_per_node(plan.nodes), script.launcher)
    if "ntasks" in script.options:  # its tasks share the CPUs, but the note names the plan's own number
        own = {line.option: line for line in plan.lines()}
        lines = tuple(own[line.option] if line.option == "ntasks-per-node" else line for line in lines)
    text, notes = inserted(script, lines, "plan")
    said = f"{script.path} {script.start}"
    if not has_launcher and plan.gpus > 1 and not any("gpu" in name or name == "gres" for name in script.options):
        said += f", and the plan has {plan.gpus} GPUs: let srun or torchrun --nproc-per-node=gpu start one a GPU"
    elif plan is not plans[0]:
        said += f": the lines are those of the best plan for it, {plan.gpus} x {plan.gpu_type}"
    return text, [said, *notes]


def inserted(script: Script, lines: Sequence[SbatchLine], whose: str) -> tuple[str, list[str]]:
    """Return the script with the lines that it lacks, and sentences on the others.

    `whose` names the source of the lines in these sentences, "plan" or "profile".
    """
    from sizing.sbatch import lines as emit
    from sizing.sbatch.script import agree, insert

    missing, kept = agree(lines, script.options)
    new = emit.commented(tuple(line.text for line in missing), tuple(line.why for line in missing))
    notes = [each.sentence(whose) for each in kept]
    if others := sbatch_options.foreign(script.text):
        notes.append(f"sbatch reads {others} lines too, and what they ask for was not looked at: write them as #SBATCH")
    return insert(script.text, new), notes


def diff(script: Script, text: str, target: Path) -> Iterator[str]:
    """Yield the unified diff from the script to the copy."""
    before, after = ([line.rstrip("\r") for line in each.split("\n")] for each in (script.text, text))
    return difflib.unified_diff(before, after, str(script.path), str(target), n=2, lineterm="")


def offer(
    script: Script, text: str, notes: Sequence[str], target: Path, *, overwrite: bool, yes: bool, quiet: bool
) -> None:
    """Show the diff and the `notes`, ask for confirmation, and write the copy.

    Raises UsageError if nobody can answer.
    """
    for line in (*diff(script, text, target), *notes):
        click.echo(printable(line), err=quiet)
    try:
        if not yes and not click.confirm(f"Write {target}?", err=quiet):
            click.echo("nothing written", err=True)
            return
    except click.Abort:
        raise UsageError("nothing written: nobody answered; give --yes to write without being asked") from None
    write(script, text, target, overwrite=overwrite)
    click.echo(f"wrote {target}", err=quiet)


def _refuse_target(script: Script, target: Path, *, overwrite: bool) -> None:
    """Raise UsageError if the target is the script itself, an existing file (unless `overwrite`), or no file."""
    if not os.path.lexists(target):
        return
    if target.exists() and target.samefile(script.path):
        raise UsageError(f"{target} is the script itself, which stays as it is; give another --output")
    if not target.is_file():
        raise UsageError(f"{target} is there already and is no file; give another --output")
    if not overwrite:
        raise UsageError(f"{target} is there already; give --overwrite, or another --output")


def write(script: Script, text: str, target: Path, *, overwrite: bool) -> None:
    """Write the copy atomically, with the script's permissions; raises UsageError."""
    _refuse_target(script, target, overwrite=overwrite)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
                os.fchmod(file.fileno(), script.path.stat().st_mode & 0o7777)
            if overwrite:
                os.replace(name, target)
            else:
                os.link(name, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except FileExistsError:
        raise UsageError(f"{target} is there already; give --overwrite, or another --output") from None
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; name a file of yours by --output") from None
