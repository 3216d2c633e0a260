"""`bft size need`: the result of `bft size cpu` for a script; elastic jobs ask it for their pilots."""

from __future__ import annotations

from pathlib import Path

import click

from bftd.base.errors import BftError, UsageError
from bftd.base.format import size
from bftd.cli import common, options


@click.command(context_settings={"allow_interspersed_args": False})
@options.as_json
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def need(as_json: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Show what `bft size cpu` found for SCRIPT, the profile with these ARGUMENTS before all others."""
    from sizing.base.errors import SizingError
    from sizing.cpu import needs
    from sizing.cpu.words import age

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
        answer = {name: getattr(found, name) for name in ("cpus", "memory_bytes", "gpus", "host", "same_arguments")}
        common.echo_json({**answer, "age_s": old_s})
        return
    each = "for each GPU" if found.gpus else "in all"
    with_ = "with these arguments" if found.same_arguments else "with other arguments"
    cpus = f"{found.cpus} CPU{'s' if found.cpus != 1 else ''}"
    memory = size(found.memory_bytes)
    common.echo([f"{cpus} and {memory} {each}: profiled {age(old_s)} ago on {found.host}, {with_}"])
