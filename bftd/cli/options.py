"""Command-line options that several commands share."""

from __future__ import annotations

import math

import click

config = click.option("--config", "config_path", metavar="FILE", help="Configuration that names the daemon.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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
