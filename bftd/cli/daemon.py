"""`bft tune`: changing the running daemon's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bftd import keys
from bftd.cli import common, options
from bftd.errors import UsageError
from bftd.http import client

F = TypeVar("F", bound=Callable[..., Any])


def _tunable_options(command: F) -> F:
    """An option for each key that is tunable, in the order of the file."""
    for key in reversed(keys.tunable()):
        kind: Any = click.Choice(key.choices) if key.choices else key.kind
        number = "N" if key.kind is int else "SHARE"
        metavar = None if key.choices else "SECONDS" if key.name.endswith("_s") else number
        command = click.option(_option(key), key.name, type=kind, metavar=metavar, help=key.doc)(command)
    return command


def _option(key: keys.TunableKey) -> str:
    return "--" + key.name.removesuffix("_s").replace("_", "-")


def _named(word: str) -> str:
    """The key that a word on the command line names, with or without its unit; UsageError for none."""
    name = word.removeprefix("--").replace("-", "_").lower()
    for key in keys.tunable():
        if name in (key.name, key.name.removesuffix("_s")):
            return key.name
    raise UsageError(f"{word!r} cannot be tuned; {', '.join(key.name for key in keys.tunable())} can")


@click.command()
@_tunable_options
@click.option("--reset", is_flag=True, help="Go back to the configuration's values, of each KEY or of all.")
@click.argument("names", metavar="[KEY]...", nargs=-1)
@options.config
@options.as_json
def tune(names: tuple[str, ...], reset: bool, config_path: str | None, as_json: bool, **changes: Any) -> None:
    """Change the running daemon's settings; they act at once and survive its restart.

    They hide what the configuration says, until --reset. `bft status` shows which do.
    """
    given = {
        key.name: key.checked(changes[key.name], _option(key))
        for key in keys.tunable()
        if changes[key.name] is not None
    }
    if (reset and given) or (names and not reset):
        raise UsageError("a KEY stands behind --reset, and --reset changes nothing else")
    if not given and not reset:
        *first, last = map(_option, keys.tunable())
        raise UsageError(f"give at least one of {', '.join(first)} and {last}")
    asked = [_named(name) for name in names]
    daemon = client.find(config_path)
    settings = daemon.reset(*asked) if reset else daemon.tune(**given)
    if as_json:
        common.echo_json(settings)
    else:
        click.echo("  ".join(f"{name}={value}" for name, value in settings.items()))
