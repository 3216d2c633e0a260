"""`bft size need`: the result of `bft size cpu` for a script; elastic jobs ask it for their pilots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options

if TYPE_CHECKING:
    from sizing.cpu.profiler import Profile
    from sizing.sbatch.cpu import CpuNeed


def kept(found: Profile, need: CpuNeed) -> list[str]:
    """Store a profile's result for elastic jobs with the same script; return the reason if that fails, else [].

    Nothing is stored if the need has no memory.
    """
    from sizing.cpu import needs

    if need.memory_bytes is None:
        return []
    made_s = max((point.made_s for point in found.points.values()), default=0.0)
    one = needs.StoredNeed(need.cpus, math.ceil(need.memory_bytes), need.gpus, found.host, made_s)
    note = needs.keep(found.ask.command, Path.cwd(), one)
    return [note] if note else []


@click.command(context_settings={"allow_interspersed_args": False})
@options.as_json
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def need(as_json: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Show what `bft size cpu` found for SCRIPT, the profile with these ARGUMENTS before all others."""
    from bftd.cli.size.output.cpu import age
    from sizing.base.errors import SizingError
    from sizing.cpu import needs

    try:
        found = needs.find(Path(script), arguments)
    except OSError as error:
        raise UsageError(f"{script}: {error.strerror}") from error
    except SizingError as error:
        raise BftError(str(error)) from error
    if found is None:
        raise BftError(f"{script} was not profiled as it is now: bft size cpu -- python {script} ARGUMENTS does so")
    old_s = needs.age_s(found)
    if as_json:
        fields = {name: getattr(found, name) for name in ("cpus", "memory_bytes", "gpus", "host", "same_arguments")}
        common.echo_json({**fields, "age_s": old_s})
        return
    each = "for each GPU" if found.gpus else "in all"
    with_ = "with these arguments" if found.same_arguments else "with other arguments"
    cpus = f"{found.cpus} CPU{'s' if found.cpus != 1 else ''}"
    memory = f"{found.memory_bytes / 2**30:.3g} GiB"
    common.echo([f"{cpus} and {memory} {each}: profiled {age(old_s)} ago on {found.host}, {with_}"])
