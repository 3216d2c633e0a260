"""`bft status`, `bft explain` and `bft tune`: talking to the running daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from bftd import keys
from bftd.cli import options
from bftd.errors import BftError, UsageError
from bftd.http import client
from bftd.protocol.fields import printable

# How often the live view asks: the daemon itself looks at Slurm once a second.
WATCH_EVERY_S = 1.0

F = TypeVar("F", bound=Callable[..., Any])


@click.command()
@options.config
@options.as_json
@click.option("--watch", is_flag=True, help="Show it live until interrupted.")
@click.option("--check", is_flag=True, help="Print one line on how it does and exit 0, 1 (warning) or 2 (critical).")
def status(config_path: str | None, as_json: bool, watch: bool, check: bool) -> None:
    """Show nodes, trainers and the last decisions."""
    if watch and (as_json or check):
        raise UsageError(f"{'--json' if as_json else '--check'} and --watch exclude each other: leave one out")
    if check:
        _check(config_path, as_json)
        return
    daemon = client.find(config_path)
    seen = daemon.status(folded=not as_json)
    if as_json:
        click.echo(json.dumps(seen, indent=2))
    elif watch:
        _watch(daemon, seen)
    else:
        from bftd.cli.common import console
        from bftd.view import render

        console().print(render(seen))


def _check(config_path: str | None, as_json: bool) -> None:
    """Speak as a monitoring plug-in does: on standard output, also of a daemon that cannot be asked."""
    from bftd.cli import health

    try:
        found = health.judged(client.find(config_path).status())
    except BftError as error:
        found = health.unreachable(str(error))
    click.echo(json.dumps(found.to_json()) if as_json else found.line)
    click.get_current_context().exit(found.code)


def _watch(daemon: client.Client, seen: dict[str, Any]) -> None:
    from rich.live import Live

    from bftd.view import render

    with Live(render(seen), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(render(daemon.status(folded=True)), refresh=True)


@click.command()
@click.argument("job")
@click.option("--limit", type=click.IntRange(min=1, max=10_000), default=50, show_default=True, help="Most sentences.")
@options.config
@options.as_json
def explain(job: str, limit: int, config_path: str | None, as_json: bool) -> None:
    """Tell why the trainer JOB grew, stayed or shrank."""
    told = client.find(config_path).explain(job, limit)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    for decision in told["decisions"]:
        click.echo(f"{time.strftime('%F %T', time.localtime(decision['at_s']))}  {printable(decision['text'])}")
    trainer = told["trainer"] or {}
    for what in ("curve", "resize_costs"):
        text = (trainer.get(what) or {}).get("text")  # a daemon of before has none
        if text and trainer["state"] != "finished":
            click.echo(printable(f"{trainer['name']}: {text}"))


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
        click.echo(json.dumps(settings))
    else:
        click.echo("  ".join(f"{name}={value}" for name, value in settings.items()))
