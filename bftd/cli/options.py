"""Command-line options that several commands share."""

from __future__ import annotations

import click

config = click.option("--config", "config_path", metavar="FILE", help="Configuration that names the daemon.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
trace_timeout = click.option(
    "--timeout", "timeout_s", type=float, default=120.0, metavar="S", help="For a trace; default 120 s."
)
