"""Command-line options that several commands share."""

from __future__ import annotations

import math

import click
from click.core import ParameterSource

from bftd.base.errors import UsageError

config = click.option("--config", "config_path", metavar="FILE", help="Configuration that names the daemon.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def given() -> set[str]:
    """Return the names of the parameters that stand on the command line."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def refuse_idle(names: tuple[str, ...], why: str) -> None:
    """Raise UsageError if one of these options stands on the command line, where it has no effect.

    `why` is a predicate that says what the option needs.
    """
    idle = given().intersection(names)
    for param in click.get_current_context().command.params:
        if param.name in idle:
            raise UsageError(f"{max(param.opts, key=len)} {why}")


def above_zero(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Refuse a number that is not above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value:g} is not a number above 0.")
    return value


def not_negative(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse a negative number."""
    if not (math.isfinite(value) and value >= 0):
        raise click.BadParameter(f"{value:g} is not a number of 0 or more.")
    return value
