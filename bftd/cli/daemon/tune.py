"""`bft tune`: changes the running daemon's settings, and estimates the effect from the past."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bftd import api_client
from bftd.base.errors import ApiError, BftError, DaemonUnreachable, UsageError
from bftd.cli import common, options
from bftd.cli.progress import progress_bar
from bftd.config import keys
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from bftd.simulation.effect.comparison import Effect

F = TypeVar("F", bound=Callable[..., Any])

_UNITS_H = {"h": 1.0, "d": 24.0, "": 1.0}
# The time for which the ledger keeps events.
_OVER_MOST_H = 30 * 24.0
# The HTTP status for endpoints that an older daemon does not know.
_UNKNOWN = 404
# The format version of the daemon's answer about the past.
_FORMAT = 1


def _tunable_options(command: F) -> F:
    """Add an option for each tunable key, in the order of the configuration file."""
    for key in reversed(keys.tunable()):
        kind: Any = click.Choice(key.choices) if key.choices else key.kind
        number = {int: "N", float: "SHARE", str: "NAME"}[key.kind]
        metavar = None if key.choices else "SECONDS" if key.name.endswith("_s") else number
        command = click.option(_option(key), key.name, type=kind, metavar=metavar, help=key.doc)(command)
    return command


def _option(key: keys.TunableKey) -> str:
    return "--" + key.name.removesuffix("_s").replace("_", "-")


def _named(word: str) -> str:
    """Return the key that a word on the command line names, with or without its unit; raises UsageError."""
    name = word.removeprefix("--").replace("-", "_").lower()
    for key in keys.tunable():
        if name in (key.name, key.name.removesuffix("_s")):
            return key.name
    raise UsageError(f"{word!r} cannot be tuned; {', '.join(key.name for key in keys.tunable())} can")


def _hours(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse 24h, 7d or a number of hours."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd]?)", value.strip().lower())
    hours = float(found[1]) * _UNITS_H[found[2]] if found else 0.0
    if not 1.0 <= hours <= _OVER_MOST_H:
        raise click.BadParameter(f"{value!r} is no time from 1h to 30d.")
    return hours


@click.command()
@_tunable_options
@click.option("--reset", is_flag=True, help="Go back to the configuration's values, of each KEY or of all.")
@click.option("--dry-run", is_flag=True, help="Only show the effect; change nothing.")
@click.option("--effect/--no-effect", default=None, help="Show the effect first, or not [on a terminal: show it].")
@click.option("--over", "hours", default="24h", show_default=True, callback=_hours, help="How much of the past counts.")
@click.argument("names", metavar="[KEY]...", nargs=-1)
@options.config
@options.as_json
def tune(
    names: tuple[str, ...],
    reset: bool,
    dry_run: bool,
    effect: bool | None,
    hours: float,
    config_path: str | None,
    as_json: bool,
    **changes: Any,
) -> None:
    """Change the running daemon's settings, or show them; changes act at once and survive its restart.

    They hide the configuration's values until --reset.

    First it shows their effect, by replaying the last day with the present settings and with these, on this host. That
    is advice: if there is none, they are changed all the same.
    """
    given = {
        key.name: key.checked(changes[key.name], _option(key))
        for key in keys.tunable()
        if changes[key.name] is not None
    }
    if (reset and given) or (names and not reset):
        raise UsageError("name KEYs only with --reset, and change nothing else with it")
    if dry_run and effect is False:
        raise UsageError("--dry-run shows the effect and does nothing else: leave --no-effect out")
    if not given and not reset:
        *first, last = map(_option, keys.tunable())
        options.refuse_idle(("dry_run", "effect", "hours"), f"is for a change: give {', '.join(first)} or {last}")
        _show(api_client.find(config_path).status(folded=True), as_json)
        return
    chosen = [_named(name) for name in names]
    daemon = api_client.find(config_path)
    change = _as_typed(given, chosen, reset)
    found = None
    if dry_run or (sys.stderr.isatty() if effect is None else effect):
        try:
            found = _estimate(daemon, given, chosen, hours, failing=dry_run)
        except KeyboardInterrupt:
            click.echo("bft: interrupted: nothing is changed; --no-effect does not wait for the effect", err=True)
            click.get_current_context().exit(130)
        for line in [] if as_json else (found.text(change), *(f"note: {note}" for note in found.notes)):
            click.echo(printable(line), err=not dry_run)
    if dry_run:
        if as_json:
            common.echo_json({"effect": found and found.to_json()})
        return
    settings = daemon.reset(*chosen) if reset else daemon.tune(**given)
    if as_json:
        common.echo_json(settings | {"effect": found and found.to_json()})
    else:
        click.echo("  ".join(f"{name}={value}" for name, value in settings.items()))


def _show(status: Mapping[str, Any], as_json: bool) -> None:
    """Print the settings, each with the configuration's value if that is hidden."""
    if as_json:
        common.echo_json({**status["settings"], "effect": None})
        return
    for key in keys.tunable():
        tuned = status["tuned"].get(key.name)
        own = "" if tuned is None else f"  (the configuration has {_number(tuned['file'])})"
        click.echo(printable(f"{_option(key)} {_number(status['settings'][key.name])}{own}"))


def _as_typed(given: Mapping[str, Any], names: list[str], reset: bool) -> str:
    """Return the requested change as it would be typed."""
    if reset:
        return " ".join(["--reset", *names])
    return " ".join(f"{_option(key)} {_number(given[key.name])}" for key in keys.tunable() if key.name in given)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _estimate(
    daemon: api_client.ApiClient, given: Mapping[str, Any], names: list[str], hours: float, failing: bool
) -> Effect:
    """Estimate the effect of these settings, or say why that is impossible.

    With `failing`, a failed request is raised, unless the daemon is merely too old to know its past.
    """
    from bftd.simulation.effect.comparison import Effect, compared

    try:
        answer = daemon.pool_trace(time.time() - hours * 3600.0)
    except (ApiError, DaemonUnreachable) as error:
        old = isinstance(error, ApiError) and error.status == _UNKNOWN
        if failing and not old:
            raise
        return Effect(hours, why_not="the daemon is older than bft and cannot replay its past" if old else str(error))
    if answer["format"] != _FORMAT:
        return Effect(hours, why_not="the daemon is of another version: use the bft of that version")
    settings = answer["settings"] | (given or _of_file(daemon, names))
    if settings == answer["settings"]:
        return Effect(hours, why_not="the daemon has these settings already")
    try:
        with progress_bar("replay") as progress:
            return compared(answer, settings, hours, progress=progress)
    except BftError as error:
        return Effect(hours, why_not=str(error))


def _of_file(daemon: api_client.ApiClient, names: list[str]) -> dict[str, Any]:
    """Return the configured values of the settings that were tuned."""
    tuned = daemon.status(folded=True)["tuned"]
    return {name: item["file"] for name, item in tuned.items() if not names or name in names}
